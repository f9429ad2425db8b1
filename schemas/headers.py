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
_of_a_task = (RolloutTask, Cancel, Turn)
_of_an_attempt = (RolloutTask, Turn)
_heartbeats = (WorkerStatus, RoleStatus)


def accepts_batches(value: bytes | None) -> bool:
    """Whether who wrote a heartbeat reads `TaskBatch`, by its header `accepts`."""
    return value == TaskBatch.__name__.encode()


def headers_of(record: Record) -> list[tuple[str, bytes]]:
    """Names and utf-8 values: `type` always, `task_id` where there is one, identity on tasks and samples.

    A training sample has a `summary` as well (`schemas.sample_summary`), a heartbeat says with `accepts` that its
    writer reads `TaskBatch`: earlier releases do not.
    """
    if type(record) is Sample:
        return _headers_of_sample(record)
    headers = {"type": type(record).__name__}
    if isinstance(record, _of_a_task):
        headers["task_id"] = record.task_id
    if isinstance(record, RolloutTask):
        headers["kind"] = record.kind.value
    if isinstance(record, _of_an_attempt):
        headers["group_id"] = str(record.group_id)
        headers["replica"] = str(record.replica)
        headers["attempt"] = str(record.attempt)
    if isinstance(record, Reward):
        headers["sample_id"] = record.sample_id
    if isinstance(record, _heartbeats):
        headers["accepts"] = TaskBatch.__name__
    return [(name, value.encode()) for name, value in headers.items()]


def _headers_of_sample(sample: Sample) -> list[tuple[str, bytes]]:
    """Without the questions that other records are asked: there is one for every rollout."""
    headers = [
        ("type", b"Sample"),
        ("task_id", sample.task_id.encode()),
        ("kind", sample.kind.encode()),
        ("group_id", b"%d" % sample.group_id),
        ("replica", b"%d" % sample.replica),
        ("attempt", b"%d" % sample.attempt),
        ("sample_id", sample.sample_id.encode()),
        ("status", sample.status.encode()),
    ]
    if sample.kind == Kind.TRAINING:
        headers.append(("summary", summary_header(sample)))
    return headers
