"""The command line as a user meets it, without any broker."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from rollog.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

heavy = {"torch", "vllm", "kafka", "transformers", "deepspeed", "pydantic", "numpy", "fastavro", "rich"}

print_modules = """
import sys
from rollog.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    status = end.code
sys.stderr.write("modules " + " ".join(sys.modules))
sys.exit(status)
"""


def rollog(
    *arguments: str, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
    return subprocess.run(
        [sys.executable, "-m", "rollog.cli.main", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=60,
        env={**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
    )


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["train", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", print_modules, *arguments], check=True, capture_output=True, text=True
    )

    modules = set(ended.stderr.rpartition("modules ")[2].split())
    assert "rollog.cli.main" in modules
    assert not modules & heavy


def test_every_command_has_help() -> None:
    for arguments in ([], *([name] for name in cli.commands), ["topics", "create"], ["topics", "check"]):
        result = CliRunner().invoke(cli, [*arguments, "--help"])

        assert result.exit_code == 0
        assert "Usage:" in result.output


def test_settings_that_are_not_known_end_with_status_2_and_no_traceback() -> None:
    ended = rollog("up", "--set", "groups.group_sise=4")

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: groups.group_sise (--set")
    assert "did you mean 'group_size'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in rollog("--debug", "up", "--set", "groups.group_sise=4").stderr


def test_a_malformed_run_name_is_refused_before_anything_starts(tmp_path: Path) -> None:
    ended = rollog("up", "--run", "Calm Otter", cwd=tmp_path)

    assert ended.returncode == 2
    assert "run name 'Calm Otter' is malformed" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_model_is_noticed_before_anything_starts(tmp_path: Path) -> None:
    ended = rollog("up", "--set", "model.path=/no/such/model", cwd=tmp_path)

    assert ended.returncode == 2
    assert "model.path = '/no/such/model' does not exist" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_broker_is_named(tmp_path: Path) -> None:
    ended = rollog(
        "dispatch",
        *("--broker", "127.0.0.1:1", "--run", "first", "--set", "broker.connect_timeout_seconds=0.5"),
        cwd=tmp_path,
    )

    # As in an outage: whoever keeps roles running starts it again, however often.
    assert ended.returncode == 75
    assert ended.stderr.startswith("error: ")
    assert "127.0.0.1:1" in ended.stderr


def test_a_role_without_any_broker_says_how_to_get_one(tmp_path: Path) -> None:
    ended = rollog("train", "--run", "first", cwd=tmp_path)

    assert ended.returncode == 75  # supervisors start it again: there may be one soon
    assert "--broker HOST:PORT" in ended.stderr


@pytest.mark.parametrize(
    "words", [("runs",), ("audit", "first"), ("resume", "first"), ("runs", "delete", "first")]
)
def test_what_needs_a_run_makes_no_state_directory(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = rollog(*words, cwd=tmp_path)

    assert ended.returncode == 2
    assert "no state directory here (.rollog); name one with --home" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_watching_without_a_broker_says_what_starts_one(tmp_path: Path) -> None:
    (tmp_path / "state" / "kafka").mkdir(parents=True)

    ended = rollog("watch", "--run", "first", "--home", "state", cwd=tmp_path)

    assert ended.returncode == 1
    assert "`rollog broker --home state`" in ended.stderr
    assert "`rollog resume RUN --home state`" in ended.stderr


def test_the_state_directory_may_come_from_the_environment(tmp_path: Path) -> None:
    ended = rollog("train", "--run", "first", environment={"ROLLOG_HOME": str(tmp_path / "state")})

    assert str(tmp_path / "state" / "kafka") in ended.stderr


def test_unknown_options_end_with_status_2() -> None:
    ended = rollog("up", "--wrokers", "2")

    assert ended.returncode == 2
    assert "--workers" in ended.stderr


def test_topics_are_printed_without_a_broker() -> None:
    ended = rollog("topics", "print", "--run", "first", "--set", "broker.samples_partitions=3")

    assert ended.returncode == 0
    assert "rollog.first.samples partitions=3 replicas=1" in ended.stdout


def test_doctor_looks_at_this_machine(tmp_path: Path) -> None:
    ended = rollog("doctor", cwd=tmp_path)

    assert "Python: 3." in ended.stdout
    assert "disk of " in ended.stdout
    assert "processors, " in ended.stdout
    assert "broker: none named or running" in ended.stdout


def test_a_reader_that_has_seen_enough_ends_a_command_quietly(tmp_path: Path) -> None:
    script = f"{sys.executable} -m rollog.cli.main --help | true; echo ${{PIPESTATUS[0]}}"
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert shell.stdout.strip() in {"0", "141"}  # the first where all was written before the reader had gone
    assert shell.stderr == ""
