"""What the chaos benchmark kills, when, and what it counts."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from support.waiting import wait_until

from benchmarks.chaos import killed_run
from benchmarks.chaos.killed_run import Chaos
from benchmarks.chaos.kills import Kill, Role, descendants, kill_role, plan_rounds
from rollog.kernel.crash_points import CrashPoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

targets = (*Role, *CrashPoint)

sleeping = "import time; time.sleep(60)"
with_a_child = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {sleeping!r}, "rollog.cli.main dispatch ", "--run", "some"])
"""


def test_a_plan_has_every_target_once_in_each_round_and_can_be_repeated() -> None:
    rounds = list(islice(plan_rounds(7, targets), 5))
    assert all(sorted(kill.target for kill in kills) == sorted(targets) for kills in rounds)
    assert rounds == list(islice(plan_rounds(7, targets), 5))
    assert rounds != list(islice(plan_rounds(8, targets), 5))
    assert len({tuple(kill.target for kill in kills) for kills in rounds}) == 5


@pytest.fixture
def up() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose only child looks like a dispatcher."""
    process = subprocess.Popen([sys.executable, "-c", with_a_child])
    try:
        wait_until(lambda: any("dispatch" in command for _, command in descendants(process.pid)))
        yield process
    finally:
        kill_role(process.pid, Role.DISPATCHER)
        process.kill()
        process.wait()


def test_a_role_is_found_below_its_ancestor_and_killed_once(up: subprocess.Popen[bytes]) -> None:
    assert not kill_role(up.pid, Role.TRAINER)
    assert kill_role(up.pid, Role.DISPATCHER)
    wait_until(lambda: up.poll() is not None)
    assert not kill_role(up.pid, Role.DISPATCHER)


def test_deaths_are_counted_and_planned_ones_that_find_nobody_too(
    up: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killed_run, "window_seconds", 1.0)
    said: list[str] = []
    run = Chaos(up, tmp_path, said.append)
    reached = tmp_path / CrashPoint.COMMIT_SENT

    def somebody_dies() -> None:
        wait_until(reached.exists)
        reached.unlink()

    dying = threading.Thread(target=somebody_dies)
    dying.start()
    run.carry_out(
        [Kill(0.0, CrashPoint.COMMIT_SENT), Kill(0.0, CrashPoint.WEIGHTS_WRITTEN), Kill(0.0, Role.TRAINER)]
    )
    dying.join()
    assert run.kills == Counter({CrashPoint.COMMIT_SENT: 1})
    assert sorted(run.missed) == [Role.TRAINER, CrashPoint.WEIGHTS_WRITTEN]
    assert list(tmp_path.iterdir()) == [], "a window that was given up is open to nobody any more"
    assert said == ["killed: commit-sent"]
    assert not run.is_over


def test_a_window_that_is_only_reached_by_who_comes_back_kills_that_role_too(
    up: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killed_run, "window_seconds", 0.1)
    run = Chaos(up, tmp_path, print)
    run.carry_out([Kill(0.0, CrashPoint.REDO_RUNNING)])
    assert run.missed == [Role.TRAINER, Role.TRAINER, CrashPoint.REDO_RUNNING], "tried once more"


def test_a_round_ends_with_the_run(up: subprocess.Popen[bytes], tmp_path: Path) -> None:
    run = Chaos(up, tmp_path, print)
    run.carry_out([Kill(0.0, Role.DISPATCHER), Kill(30.0, CrashPoint.COMMIT_SENT)])
    assert run.is_over
    assert run.kills == Counter({Role.DISPATCHER: 1})
