"""How a trainer finds its place again: checkpoint or version 0, then the committed steps once more.

Consumes a recorded run and the newest complete checkpoint; produces an engine that stands at the last committed
version. Every redone step must give the weights that were published for it, bit for bit; otherwise recovery stops
and says so. On a crash it is simply done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.errors import EngineError, LedgerError
from rollog.logs import get_logger
from trainer.redo import not_reproduced, redo_steps, restore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.checkpoints import Checkpoint
    from trainer.engines.ports import TrainingEngine
    from trainer.redo import Recording

log = get_logger("trainer")


def restore_engine(
    engine: TrainingEngine, recording: Recording, checkpoints: Sequence[Checkpoint]
) -> Checkpoint | None:
    """Bring `engine` to the last committed version; returns the checkpoint it started from, None for version 0.

    Raises:
        LedgerError: a checkpoint is ahead of the ledger or of another history; a referenced sample is gone.
        EngineError: a redone step gives other weights than the published ones.
    """
    ledger = recording.history.state
    _refuse_ahead(checkpoints, ledger.version)
    checkpoint = restore(engine, recording, checkpoints, at_most=ledger.version)
    begin = 0 if checkpoint is None else checkpoint.version
    log.info("recovering", version=ledger.version, redo_from=begin)
    for step in redo_steps(engine, recording, range(begin + 1, ledger.version + 1)):
        if step.weights_sha256 != ledger.weights[step.version]:
            what = f"redoing the step of version {step.version}"
            raise EngineError(
                not_reproduced(recording, engine.describe(), step.version, step.weights_sha256, what)
            )
    return checkpoint


def _refuse_ahead(checkpoints: Sequence[Checkpoint], version: int) -> None:
    """Raise LedgerError for a checkpoint of a version that the ledger does not have."""
    for checkpoint in checkpoints:
        if checkpoint.version > version:
            raise LedgerError(
                f"checkpoint {checkpoint.directory} is ahead of the ledger, which ends at version {version}: "
                "the ledger lost records or belongs to another run; restore the topic, or remove the checkpoint"
            )
