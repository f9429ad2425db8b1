"""Deleting the samples of a run that nothing needs any more, and saying what can no longer be shown then.

Records go first, then those objects of large samples that were listed before and that no record names: a crash between
leaves objects that nobody names, which the next prune deletes. In a run that goes on, objects younger than an hour
stay: their records may be on their way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumers.ledger import StoredLedger, folded
from consumers.named_payloads import named_payloads
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.store_owner import original_of
from rollog.run.retention import plan_prune
from trainer.checkpoints import CheckpointStore, usable_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rollog.rules.ledger_state import LedgerState
    from rollog.run.recorded_run import RecordedRun
    from rollog.run.retention import PrunePlan


_least_age_seconds = 3600.0
"""An object is written before its record; in an hour the record is there, or its worker has gone."""


def prune_samples(run: RecordedRun, home: Path, *, keep_steps: int, is_dry_run: bool) -> Iterator[str]:
    """Delete what may go, unless it is a dry run; yields lines that say so. Raises as `plan_prune` does."""
    entries = StoredLedger(run.broker, run.topics)
    ledger = folded(entries)
    payloads = PayloadStore(run.store, run.topics)
    is_ours = not run.is_archive and original_of(run.store, run.topics, home) is None
    objects = (
        payloads.names(least_age_seconds=0.0 if ledger.is_closed else _least_age_seconds) if is_ours else []
    )
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
    unnamed = _unnamed(objects, run, dict(zip(places, plan.offsets, strict=True)))
    if not is_dry_run:
        for name in unnamed:
            payloads.delete(name)
    yield from _lines(plan, run, ledger, num_objects=len(unnamed), is_dry_run=is_dry_run)


def _unnamed(objects: Sequence[str], run: RecordedRun, starts: Mapping[TopicPartition, int]) -> list[str]:
    """Which of these objects no record names, of samples from these offsets on and of all evaluations."""
    if not objects:
        return []
    with run.broker.consumer(client_id="prune-objects") as consumer:
        evaluations = [TopicPartition(run.topics.evaluations, place.partition) for place in starts]
        named = named_payloads(consumer, {**starts, **consumer.beginning_offsets(evaluations)})
    return [name for name in objects if name not in named]


def _first_step_redone(run: RecordedRun, home: Path, ledger: LedgerState) -> int:
    """The step from which a trainer that starts in `home` would train again."""
    directory = home / "runs" / run.topics.run / "checkpoints"
    complete = CheckpointStore(directory).complete()
    checkpoint = usable_checkpoint(complete, ledger, at_most=ledger.version)
    return 1 if checkpoint is None else checkpoint.version + 1


def _lines(
    plan: PrunePlan, run: RecordedRun, ledger: LedgerState, *, num_objects: int, is_dry_run: bool
) -> Iterator[str]:
    verb = "would be deleted" if is_dry_run else "were deleted"
    if not plan.num_deleted and not num_objects:
        yield f"run {run.topics.run}: nothing to delete at version {ledger.version}"
    if plan.num_deleted:
        yield from _lines_of_records(plan, run, verb)
    if num_objects:
        yield f"{run.store.public_uri}: {num_objects} objects of large samples {verb}, which no record names any more"


def _lines_of_records(plan: PrunePlan, run: RecordedRun, verb: str) -> Iterator[str]:
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
