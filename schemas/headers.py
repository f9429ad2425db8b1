"""Kafka headers of a record: what can be learnt about it without decoding its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.rewards import Reward
from schemas.samples import Sample
from schemas.tasks import Cancel, RolloutTask
from schemas.turns import Turn

if TYPE_CHECKING:
    from schemas.records import Record


def headers_of(record: Record) -> list[tuple[str, bytes]]:
    """Names and utf-8 values: `type` always, `task_id` where there is one, identity on tasks and samples."""
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
    return [(name, value.encode()) for name, value in headers.items()]
