"""How a trainer finds its place again: checkpoint or version 0, then the committed steps once more.

Consumes a recorded run and the newest complete checkpoint; produces an engine that stands at the last committed
version. Every redone step must give the weights that were published for it, bit for bit; otherwise recovery stops
and says so, unless the run may go on from other weights. On a crash it is simply done again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import EngineError, LedgerError
from rollog.kernel.logs import get_logger
from trainer.recorded.redo import not_reproduced, redo_steps, restore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.checkpoints import Checkpoint
    from trainer.engines.ports import TrainingEngine
    from trainer.recorded.redo import Recording, RedoneStep

log = get_logger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where an engine stands after recovery.

    `checkpoint` is where it started from, None for version 0. `other_weights` is the redone step to the newest version
    where it gave other weights than the published ones and that is allowed, else None.
    """

    checkpoint: Checkpoint | None
    other_weights: RedoneStep | None


def restore_engine(
    engine: TrainingEngine,
    recording: Recording,
    checkpoints: Sequence[Checkpoint],
    *,
    allow_rebase: bool = False,
) -> Restored:
    """Bring `engine` to the last committed version.

    Steps before the newest rebase are redone without being judged: what counts is whether its weights come out.

    Raises:
        LedgerError: a checkpoint is ahead of the ledger or of another history; a referenced sample is gone.
        EngineError: a redone step gives other weights than the published ones, and `allow_rebase` is not set.
    """
    history = recording.history
    newest = history.state.version
    _refuse_ahead(checkpoints, newest)
    checkpoint = restore(engine, recording, checkpoints, at_most=newest)
    begin = 0 if checkpoint is None else checkpoint.version
    log.info("recovering", version=newest, redo_from=begin)
    other_weights = redo_recorded(engine, recording, range(begin + 1, newest + 1), allow_rebase=allow_rebase)
    return Restored(checkpoint=checkpoint, other_weights=other_weights)


def redo_recorded(
    engine: TrainingEngine, recording: Recording, versions: range, *, allow_rebase: bool
) -> RedoneStep | None:
    """Redo the steps to `versions` and judge each; returns the newest where it gave other weights and that is allowed.

    Raises as `restore_engine`.
    """
    history = recording.history
    other_weights: RedoneStep | None = None
    for step in redo_steps(engine, recording, versions):
        is_reproduced = step.weights_sha256 == history.state.weights[history.continued_as(step.version)]
        other_weights = None if is_reproduced else step
        if is_reproduced or history.is_superseded(step.version):
            continue
        what = f"redoing the step of version {step.version}"
        problem = not_reproduced(recording, engine.describe(), step.version, step.weights_sha256, what)
        if not allow_rebase:
            raise EngineError(problem)
        log.warning("not reproduced", problem=problem)
    return other_weights


def _refuse_ahead(checkpoints: Sequence[Checkpoint], version: int) -> None:
    """Raise LedgerError for a checkpoint of a version that the ledger does not have."""
    for checkpoint in checkpoints:
        if checkpoint.version > version:
            raise LedgerError(
                f"checkpoint {checkpoint.directory} is ahead of the ledger, which ends at version {version}: "
                "the ledger lost records or belongs to another run; restore the topic, or remove the checkpoint"
            )
