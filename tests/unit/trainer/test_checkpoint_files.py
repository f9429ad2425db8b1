"""Files of a checkpoint: their digests, and how little of them the disk has still to take at any moment."""

from __future__ import annotations

import hashlib
import os
from itertools import pairwise
from typing import TYPE_CHECKING

from trainer import checkpoint_files
from trainer.checkpoint_files import hashed_file

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_is_written_is_synced_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version is written beside: its own sync would wait for all that a checkpoint has left to the disk."""
    synced: list[int] = []
    sync = os.fsync

    def syncing(number: int) -> None:
        synced.append(os.fstat(number).st_size)
        sync(number)

    monkeypatch.setattr(checkpoint_files, "_piece_bytes", 100)
    monkeypatch.setattr(checkpoint_files, "_most_unsynced_bytes", 1000)
    monkeypatch.setattr(os, "fsync", syncing)
    content = bytes(range(250)) * 11
    with hashed_file(tmp_path / "state") as file:
        for begin in range(0, len(content), 330):
            file.write(content[begin : begin + 330])
    ends = [0, *synced[:-1]]  # the last is that of the directory
    assert ends[-1] == len(content)
    assert max(end - before for before, end in pairwise(ends)) < 1000 + 100
    assert file.sha256 == hashlib.sha256(content).hexdigest()


def test_each_piece_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "_piece_bytes", 100)
    sizes: list[int] = []
    path = tmp_path / "state"
    with hashed_file(path, lambda: sizes.append(path.stat().st_size)) as file:
        file.write(bytes(250))
    assert sizes == [0, 100, 200]
