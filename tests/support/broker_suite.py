"""What every cluster that rollog supports must pass: the broker's contract suite, and a short run that replays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollog.run.role_settings import trainer_settings
from support.recorded_steps import recording_of, replayed
from support.threaded_run import small_settings, whole_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.kernel.broker.ports import Broker

root = Path(__file__).resolve().parents[2]
told_seconds = 300.0
fewest_tests = 25
"""Of each client that is installed, less than the suite has; a run that collected nothing must not pass."""


def told(*words: str, home: Path) -> tuple[int, str]:
    """Exit status and everything said by one command of rollog."""
    command = [sys.executable, "-m", "rollog.cli.main", *words, "--home", str(home)]
    try:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=told_seconds)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"`rollog {words[0]}` goes on: {error.stdout!r} {error.stderr!r}") from error
    return ended.returncode, ended.stdout + ended.stderr


def passes_contract_suite(address: str) -> None:
    """Run the tests of `tests/contract` that need Apache Kafka against the broker at `address`."""
    files = sorted(str(path) for path in (root / "tests" / "contract").glob("test_broker_*.py"))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "broker", "-p", "no:cacheprovider", *files],
        cwd=root,
        env={**os.environ, "ROLLOG_TEST_BROKER": address},
        capture_output=True,
        text=True,
        check=False,
    )
    told = ended.stdout + ended.stderr
    assert ended.returncode == 0, told[-6000:]
    passed = re.search(r"(\d+) passed", told)
    assert passed is not None, told[-2000:]
    has_confluent = find_spec("confluent_kafka") is not None
    assert int(passed.group(1)) >= fewest_tests * (1 + has_confluent), told[-2000:]
    if has_confluent:
        assert "skipped" not in told, told[-2000:]


def short_run_replays(
    broker: Broker, home: Path, name: str, sections: Mapping[str, dict[str, Any]] | None = None
) -> None:
    """Create a run, train it, audit it clean, and train it again to the same bytes."""
    settings = small_settings(home, name, **{"trainer": {"engine": "torch"}, **(sections or {})})
    with whole_run(broker, home, settings) as run:
        run.to_its_end()
        run.audited()
        again = recording_of(broker, trainer_settings(settings, run.manifest, home), home / "downloads")
    _, steps = replayed(again, 0, 3)
    assert [step.version for step in steps] == [1, 2, 3]
    assert not any(step.differing for step in steps)
