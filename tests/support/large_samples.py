"""Runs whose samples stand in objects of the store: what the rest of such a run writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import WeightsStore
from schemas.claim_check import split

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.topics import RunTopics
    from schemas import Sample
    from trainer.settings import TrainerSettings


def payloads_of(settings: TrainerSettings, topics: RunTopics) -> PayloadStore:
    """The objects of the run of these settings."""
    return PayloadStore(WeightsStore(settings.weights_uri), topics)


def stored(sample: Sample, payloads: PayloadStore) -> Sample:
    """The record of a sample whose object is in the store."""
    record, data = split(sample)
    assert record.payload is not None
    assert payloads.put(data) == record.payload.sha256
    return record


def object_of(record: Sample, weights: Path, topics: RunTopics) -> Path:
    """The file that is the object of a record."""
    assert record.payload is not None
    return weights / "payloads" / f"{topics.prefix}.{topics.run}" / record.payload.sha256
