"""Kafka headers of a record: what can be learnt about it without decoding its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.rewards import Reward
from schemas.sample_summary import summary_header
from schemas.samples import Sample
from schemas.tasks import Cancel, Kind, RolloutTask, TaskBatch
from schemas.turns import Turn
from schemas.workers import RoleStatus, WorkerStatus

if TYPE_CHECKING:
    from schemas.records import Record


# Tuples, which a call does not make anew.
_of_a_task = (RolloutTask, Cancel, Sample, Turn)
_of_a_kind = (RolloutTask, Sample)
_of_an_attempt = (RolloutTask, Sample, Turn)
_of_a_sample = (Sample, Reward)
_heartbeats = (WorkerStatus, RoleStatus)


def accepts_batches(value: bytes | None) -> bool:
    """Whether who wrote a heartbeat reads `TaskBatch`, by its header `accepts`."""
    return value == TaskBatch.__name__.encode()


def headers_of(record: Record) -> list[tuple[str, bytes]]:
    """Names and utf-8 values: `type` always, `task_id` where there is one, identity on tasks and samples.

    A training sample has a `summary` as well (`schemas.sample_summary`), a heartbeat says with `accepts` that its
    writer reads `TaskBatch`: earlier releases do not.
    """
    headers = {"type": type(record).__name__}
    if isinstance(record, _of_a_task):
        headers["task_id"] = record.task_id
    if isinstance(record, _of_a_kind):
        headers["kind"] = record.kind.value
    if isinstance(record, _of_an_attempt):
        headers["group_id"] = str(record.group_id)
        headers["replica"] = str(record.replica)
        headers["attempt"] = str(record.attempt)
    if isinstance(record, _of_a_sample):
        headers["sample_id"] = record.sample_id
    if isinstance(record, _heartbeats):
        headers["accepts"] = TaskBatch.__name__
    if isinstance(record, Sample):
        headers["status"] = record.status.value
    named = [(name, value.encode()) for name, value in headers.items()]
    if isinstance(record, Sample) and record.kind is Kind.TRAINING:
        named.append(("summary", summary_header(record)))
    return named
