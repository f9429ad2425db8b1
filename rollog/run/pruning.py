"""Deleting the samples of a run that nothing needs any more, and saying what can no longer be shown then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumers.ledger import StoredLedger, folded
from rollog.kernel.broker.ports import TopicPartition
from rollog.run.retention import plan_prune
from trainer.checkpoints import CheckpointStore, usable_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.rules.ledger_state import LedgerState
    from rollog.run.recorded_run import RecordedRun
    from rollog.run.retention import PrunePlan


def prune_samples(run: RecordedRun, home: Path, *, keep_steps: int, is_dry_run: bool) -> Iterator[str]:
    """Delete what may go, unless it is a dry run; yields lines that say so. Raises as `plan_prune` does."""
    entries = StoredLedger(run.broker, run.topics)
    ledger = folded(entries)
    places = [TopicPartition(run.topics.samples, number) for number in range(len(ledger.low_water_marks))]
    with run.broker.consumer(client_id="prune") as consumer:
        beginnings = consumer.beginning_offsets(places)
    plan = plan_prune(
        (entry.record for entry in entries),
        [beginnings[place] for place in places],
        keep_steps=keep_steps,
        redo_from=None if ledger.is_closed else _first_step_redone(run, home, ledger),
    )
    if plan.num_deleted and not is_dry_run:
        with run.broker.admin() as admin:
            admin.delete_records(dict(zip(places, plan.offsets, strict=True)))
            if plan.reward_offset:
                admin.delete_records({TopicPartition(run.topics.rewards, 0): plan.reward_offset})
    yield from _lines(plan, run, ledger, is_dry_run=is_dry_run)


def _first_step_redone(run: RecordedRun, home: Path, ledger: LedgerState) -> int:
    """The step from which a trainer that starts in `home` would train again."""
    directory = home / "runs" / run.topics.run / "checkpoints"
    complete = CheckpointStore(directory).complete()
    checkpoint = usable_checkpoint(complete, ledger, at_most=ledger.version)
    return 1 if checkpoint is None else checkpoint.version + 1


def _lines(plan: PrunePlan, run: RecordedRun, ledger: LedgerState, *, is_dry_run: bool) -> Iterator[str]:
    if not plan.num_deleted:
        yield f"run {run.topics.run}: nothing to delete at version {ledger.version}"
        return
    verb = "would be deleted" if is_dry_run else "were deleted"
    offsets = ", ".join(f"{number}: {offset}" for number, offset in enumerate(plan.offsets))
    yield f"{run.topics.samples}: {plan.num_deleted} offsets {verb}, below (by partition) {offsets}"
    if plan.reward_offset:
        yield f"{run.topics.rewards}: offsets below {plan.reward_offset} {verb}"
    yield f"audit can then no longer compare {plan.num_unchecked} samples with the digests in the ledger"
    if plan.last_step_lost:
        yield (
            f"steps 1 to {plan.last_step_lost} can then not be trained again: replay needs a checkpoint of version "
            f"{plan.last_step_lost} or later, and samples of these steps cannot be exported; `rollog export` keeps them"
        )
