"""Saves a checkpoint, begins another one and finishes it: `python tests/support/checkpoint_process.py DIRECTORY`.

To be killed at a crash point in between.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.checkpoint_files import hashed_file
from trainer.checkpoints import CheckpointStore, EngineCheckpoints
from trainer.engines.simulated import SimulatedTrainingEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.checkpoint_files import Digests

half = b"half of a file"


class TwoPiecesEngine(SimulatedTrainingEngine):
    """Its file is written in two pieces."""

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        def write() -> Digests:
            with hashed_file(directory / "state") as file:
                file.write(half)
                file.write(half)
            return {"state": file.sha256}

        return write


class Silent:
    """In place of a reporter."""

    def checkpointed(self, name: str, seconds: float) -> None:
        """Of no interest here."""


def main(directory: Path) -> None:
    engine = TwoPiecesEngine()
    store = CheckpointStore(directory)
    with ThreadPoolExecutor(1) as writers:
        checkpoints = EngineCheckpoints(store, engine, Silent(), lambda: 0.0, writers)  # type: ignore[arg-type]
        checkpoints.begin(2, lambda: "ab" * 32, keep=2)
        checkpoints.take_note(wait=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
