"""Who is killed at any point of a checkpoint leaves none, and the one before it as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support import checkpoint_process
from support.checkpoint_process import half

from rollog.kernel.crash_points import CrashPoint, directory_variable
from trainer.checkpoints import CheckpointStore

if TYPE_CHECKING:
    from pathlib import Path


def run_process(directory: Path, marks: Path) -> int:
    """Its exit status; negative where a signal ended it."""
    environment = {**os.environ, directory_variable: str(marks), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, checkpoint_process.__file__, str(directory)]
    return subprocess.run(command, env=environment, check=False, timeout=60).returncode


def write_state(directory: Path) -> dict[str, str]:
    (directory / "state").write_bytes(half)
    return {}


@pytest.mark.parametrize(
    ("point", "left"),
    [
        (CrashPoint.CHECKPOINT_COPIED, None),
        (CrashPoint.CHECKPOINT_FILE_HALF_WRITTEN, half),
        (CrashPoint.CHECKPOINT_HALF_WRITTEN, half + half),
    ],
)
def test_a_checkpoint_that_its_process_did_not_finish_is_none(
    tmp_path: Path, point: CrashPoint, left: bytes | None
) -> None:
    store, marks = CheckpointStore(tmp_path / "checkpoints"), tmp_path / "marks"
    before = store.save(1, "ab" * 32, write_state, keep=2)
    marks.mkdir()
    (marks / point).touch()
    assert run_process(tmp_path / "checkpoints", marks) == -signal.SIGKILL
    assert list(marks.iterdir()) == []
    (begun,) = (tmp_path / "checkpoints").glob("step-000002.*")
    state = begun / "state"
    assert (state.read_bytes() if state.exists() else None) == left
    assert store.complete() == [before]
    store.remove_remains()
    assert list((tmp_path / "checkpoints").iterdir()) == [before.directory]
    assert run_process(tmp_path / "checkpoints", marks) == 0
    assert [(each.version, each.damage()) for each in store.complete()] == [(2, None), (1, None)]
