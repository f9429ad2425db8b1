"""Commands against the real broker: creating a run, role processes, their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.broker.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker


class Shell:
    """Runs `rollog` in an empty directory against one broker; ends what is left running."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory = directory
        self.address = address
        self.run = f"run-{uuid.uuid4().hex[:8]}"
        self.started: list[subprocess.Popen[bytes]] = []
        rows = [{"prompt": f"{number} + 1 =", "answer": number + 1} for number in range(64)]
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (directory / "run.toml").write_text(
            '[model]\npath = "Some/Model"\n[data]\ntrain = "rows.jsonl"\n[reward]\nfunction = "here:reward"\n'
        )

    def command(self, *words: str) -> list[str]:
        place = ("--run", self.run, "--broker", self.address, "--home", str(self.directory / "home"))
        return [sys.executable, "-m", "rollog.cli.main", *words, *place]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
        return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
            cwd=self.directory,
            env=self.environment,
        )

    def start(self, *words: str, log: str) -> subprocess.Popen[bytes]:
        with (self.directory / log).open("wb") as output:
            process = subprocess.Popen(
                self.command(*words), stderr=output, cwd=self.directory, env=self.environment
            )
        self.started.append(process)
        return process

    def wait_for(self, log: str, words: str) -> None:
        wait_until(lambda: words in (self.directory / log).read_text(), 60, f"{words!r} in {log}")


@pytest.fixture
def shell(tmp_path: Path, embedded_kafka: EmbeddedKafka) -> Iterator[Shell]:
    made = Shell(tmp_path, embedded_kafka.address)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_a_run_is_created_once(shell: Shell) -> None:
    created = shell.call("topics", "create", "--config", "run.toml")
    checked = shell.call("topics", "check", "--config", "run.toml")
    again = shell.call("topics", "create", "--config", "run.toml")

    assert (created.returncode, checked.returncode) == (0, 0), created.stderr + checked.stderr
    assert again.returncode == 1
    assert f"run '{shell.run}' exists already" in again.stderr


def test_missing_topics_are_named_with_a_remedy(shell: Shell) -> None:
    checked = shell.call("topics", "check", "--config", "run.toml")

    assert checked.returncode == 1
    assert f"topic rollog.{shell.run}.steps does not exist" in checked.stderr


def test_topics_of_another_shape_are_refused(shell: Shell) -> None:
    shell.call("topics", "create", "--config", "run.toml")

    checked = shell.call("topics", "check", "--config", "run.toml", "--set", "broker.samples_partitions=7")

    assert checked.returncode == 1
    assert "not 7" in checked.stderr


def test_a_role_of_an_unknown_run_gives_up_after_its_wait(shell: Shell) -> None:
    ended = shell.call("dispatch", "--wait", "0")

    assert ended.returncode == 1
    assert f"there is no run '{shell.run}'" in ended.stderr


def test_a_dispatcher_finds_its_settings_in_the_manifest_and_stops_gracefully(shell: Shell) -> None:
    shell.call("topics", "create", "--config", "run.toml")
    dispatcher = shell.start("dispatch", log="log")
    shell.wait_for("log", "role begins")

    dispatcher.send_signal(signal.SIGTERM)

    assert dispatcher.wait(60) == 128 + signal.SIGTERM, (shell.directory / "log").read_text()
    assert "role ends" in (shell.directory / "log").read_text()


def test_a_dispatcher_waits_for_its_run_to_be_created(shell: Shell) -> None:
    shell.start("dispatch", log="log")
    shell.call("topics", "create", "--config", "run.toml")

    shell.wait_for("log", "role begins")


def test_a_broken_data_set_ends_the_dispatcher_with_the_status_for_settings(shell: Shell) -> None:
    (shell.directory / "rows.jsonl").write_text('{"prompt": "1 + 1 ="}\nnot json\n')
    shell.call("topics", "create", "--config", "run.toml")

    ended = shell.call("dispatch")

    assert ended.returncode == 2
    assert "line 2" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_role_serves_its_metrics(shell: Shell) -> None:
    shell.call("topics", "create", "--config", "run.toml")
    shell.start("dispatch", "--metrics-port", "0", log="log")

    shell.wait_for("log", "metrics served role=dispatcher host=127.0.0.1 port=")
