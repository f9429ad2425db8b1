"""Kafka headers of a record: what can be learnt about it without decoding its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.rewards import Reward
from schemas.sample_summary import summary_header
from schemas.samples import Sample
from schemas.tasks import Cancel, Kind, RolloutTask
from schemas.turns import Turn

if TYPE_CHECKING:
    from schemas.records import Record


def headers_of(record: Record) -> list[tuple[str, bytes]]:
    """Names and utf-8 values: `type` always, `task_id` where there is one, identity on tasks and samples.

    A training sample has a `summary` as well (`schemas.sample_summary`).
    """
    headers = {"type": type(record).__name__}
    if isinstance(record, RolloutTask | Cancel | Sample | Turn):
        headers["task_id"] = record.task_id
    if isinstance(record, RolloutTask | Sample):
        headers["kind"] = record.kind.value
        headers["group_id"] = str(record.group_id)
        headers["replica"] = str(record.replica)
        headers["attempt"] = str(record.attempt)
    if isinstance(record, Turn):
        headers["group_id"] = str(record.group_id)
        headers["replica"] = str(record.replica)
        headers["attempt"] = str(record.attempt)
    if isinstance(record, Sample | Reward):
        headers["sample_id"] = record.sample_id
    if isinstance(record, Sample):
        headers["status"] = record.status.value
    named = [(name, value.encode()) for name, value in headers.items()]
    if isinstance(record, Sample) and record.kind is Kind.TRAINING:
        named.append(("summary", summary_header(record)))
    return named
