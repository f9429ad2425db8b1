"""The script that keeps a role's container going: what ends for good, what starts again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

script = Path(__file__).parents[2] / "infra" / "keep-running.sh"


@pytest.fixture(autouse=True)
def final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a final status is remembered."""
    path = tmp_path / "final"
    monkeypatch.setenv("KEEP_RUNNING_FINAL", str(path))
    return path


def kept(shell_text: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sh", str(script), "sh", "-c", shell_text], stderr=subprocess.PIPE)


@pytest.mark.parametrize("status", [0, 2, 78])
def test_a_final_status_is_passed_on_without_another_try(status: int, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    process = kept(f"echo try >> {tries}; exit {status}")

    _, told = process.communicate(timeout=30)

    assert process.returncode == status
    assert tries.read_text() == "try\n"
    assert told == b""


@pytest.mark.parametrize("status", [2, 78])
def test_a_final_status_holds_for_who_starts_it_again_at_once(status: int, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    kept(f"echo try >> {tries}; exit {status}").communicate(timeout=30)

    again = kept(f"echo try >> {tries}")
    _, told = again.communicate(timeout=30)

    assert again.returncode == status
    assert tries.read_text() == "try\n"
    assert b"was final" in told


def test_a_final_status_is_forgotten_after_a_while(tmp_path: Path, final: Path) -> None:
    tries = tmp_path / "tries"
    final.write_text(f"78 {int(time.time()) - 21}\n")

    process = kept(f"echo try >> {tries}")
    process.communicate(timeout=30)

    assert process.returncode == 0
    assert tries.read_text() == "try\n"


@pytest.mark.parametrize(("noted", "said"), [(78, None), (2, None), (0, 1), (75, 75)])
def test_the_status_that_a_rank_has_noted_counts_for_that_of_its_launcher(
    noted: int, said: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try notes nothing and works: what the first has noted is gone by then."""
    note, tries = tmp_path / "note", tmp_path / "tries"
    monkeypatch.setenv("KEEP_RUNNING_STATUS", str(note))
    first = f"echo {noted} > {note}; exit 1"
    process = kept(f"echo try >> {tries}; if [ $(wc -l < {tries}) -eq 1 ]; then {first}; fi; [ ! -e {note} ]")

    _, told = process.communicate(timeout=30)

    if said is None:
        assert (process.returncode, tries.read_text()) == (noted, "try\n")
    else:
        assert (process.returncode, tries.read_text()) == (0, "try\n" * 2)
        assert f"status {said}, restart".encode() in told


def test_what_failed_starts_again(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    process = kept(f"echo try >> {tries}; [ $(wc -l < {tries}) -ge 2 ] || exit 1")

    _, told = process.communicate(timeout=30)

    assert process.returncode == 0
    assert tries.read_text() == "try\n" * 2
    assert b"status 1, restart 1" in told


def test_an_engine_that_could_not_start_is_tried_once_more(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    process = kept(f"echo try >> {tries}; exit 3")

    process.communicate(timeout=30)

    assert process.returncode == 3
    assert tries.read_text() == "try\n" * 2


def test_a_suspension_is_followed_by_a_start_that_counts_for_no_restart(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    process = kept(f"echo try >> {tries}; [ $(wc -l < {tries}) -ge 2 ] || exit 75")

    _, told = process.communicate(timeout=30)

    assert process.returncode == 0
    assert tries.read_text() == "try\n" * 2
    assert b"status 75, restart in 1 s" in told
    assert b"restart 1" not in told


def test_a_stop_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = kept(f"trap 'exit 143' TERM; touch {ready}; while :; do sleep 0.05; done")
    wait_until(ready.exists, 20, "the command to be ready")

    process.send_signal(signal.SIGTERM)

    _, told = process.communicate(timeout=30)
    assert process.returncode == 143
    assert told == b""


@pytest.fixture
def stopped_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has the script's nth question for the time send it SIGTERM; each of its pauses takes a minute."""
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def write(name: str, text: str) -> None:
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def at(nth: int) -> None:
        tell = f"echo call >> {calls}; [ $(wc -l < {calls}) -ne {nth} ] || kill -TERM $PPID"
        write("date", f'{tell}; exec {shutil.which("date")} "$@"')
        write("sleep", f"exec {shutil.which('sleep')} 60")

    return at


@pytest.mark.parametrize("attempt", range(3))
def test_a_stop_just_before_the_command_starts_is_not_lost(
    attempt: int, stopped_at: Callable[[int], None], tmp_path: Path
) -> None:
    """Passed on to a child that still has the script's own trap it is lost in most attempts."""
    del attempt
    stopped_at(1)
    process = kept(f"touch {tmp_path / 'started'}; exec sleep 60")
    _, told = process.communicate(timeout=30)
    assert process.returncode == 143
    assert told in {b"", b"Terminated\n"}  # a shell says so of a child that the signal has ended
    assert not (tmp_path / "started").exists()


def test_a_stop_just_before_a_pause_ends_it(stopped_at: Callable[[int], None], tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    stopped_at(2)  # how long the command has worked: the last question before the pause
    process = kept(f"echo try >> {tries}; exit 1")
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert tries.read_text() == "try\n"


def test_nothing_is_left_behind_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, own = tmp_path / "ready", tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    process = kept(f"touch {ready}; exec sleep 60")
    wait_until(ready.exists, 20, "the command to be ready")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("status", [0, 2, 78])
def test_where_it_is_to_stay_a_final_status_is_written_and_sigterm_is_waited_for(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = tmp_path / "ended"
    ended.write_text("from before")
    monkeypatch.setenv("KEEP_RUNNING_STAY", str(ended))
    process = kept(f"[ ! -e {ended} ] && exit {status}")
    wait_until(lambda: ended.exists() and ended.read_text() != "from before", 30, "the final status")
    assert ended.read_text() == f"{status}\n"
    assert process.poll() is None

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)

    assert process.returncode == status


def test_a_stop_beside_the_start_of_a_rest_leaves_no_sleep_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `sleep` that outlives the script holds its output open: whoever reads that waits for an hour.

    The moment between a child's fork and its look for the mark is stretched until the test lets the child go.
    """
    look = '        [ -z "$stopped" ] && [ ! -e'
    text = script.read_text()
    assert look in text
    gate_path, reached = tmp_path / "gate", tmp_path / "reached"
    os.mkfifo(gate_path)
    slow = tmp_path / "keep-running.sh"
    stretched = f"trap '' TERM; echo here >> {reached}; read -r gate < {gate_path}; trap - TERM"
    slow.write_text(text.replace(look, f"        {stretched}\n{look}"))
    monkeypatch.setenv("KEEP_RUNNING_STAY", str(tmp_path / "ended"))
    process = subprocess.Popen(["sh", str(slow), "sh", "-c", "exit 78"], stderr=subprocess.PIPE)
    # Open for reading, too: what is written stays until the next child reads it.
    gate = os.open(gate_path, os.O_RDWR)
    try:
        os.write(gate, b"the command\n")
        wait_until(lambda: reached.exists() and reached.read_text() == "here\n" * 2, 30, "the rest")
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        os.write(gate, b"the rest\n")
    finally:
        os.close(gate)

    process.communicate(timeout=30)

    assert process.returncode == 78


def answers(question: str, ended: Path, **environment: str) -> int:
    """Status of role-answers where nothing serves metrics."""
    return subprocess.run(
        ["sh", str(script.with_name("role-answers.sh")), question],
        env=os.environ | {"KEEP_RUNNING_STAY": str(ended), "ROLLOG_METRICS__PORT": "1"} | environment,
        stderr=subprocess.DEVNULL,
        timeout=30,
        check=False,
    ).returncode


@pytest.mark.parametrize(("status", "is_ready"), [(0, True), (2, False), (78, False)])
def test_a_role_that_ended_for_good_is_live_and_ready_when_its_run_is_over(
    status: int, is_ready: bool, tmp_path: Path
) -> None:
    ended = tmp_path / "ended"
    assert answers("live", ended) != 0
    ended.write_text(f"{status}\n")
    assert answers("live", ended) == 0
    assert (answers("ready", ended) == 0) is is_ready


def test_a_rank_that_serves_no_metrics_is_well_as_long_as_it_runs(tmp_path: Path) -> None:
    assert answers("live", tmp_path / "ended", NODE_RANK="1") == 0
    assert answers("live", tmp_path / "ended", NODE_RANK="0") != 0
