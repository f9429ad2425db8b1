"""Samples of a recorded run replaced by others, with every digest made right again: what only a model can notice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rollog.rules.headers import record_digest
from schemas import LedgerRecord, Sample
from schemas.codec import SchemaError, decode_as, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.topics import RunTopics
    from support.altered_topics import RecordedTopics


def with_samples(
    recorded: RecordedTopics, topics: RunTopics, edit: Callable[[Sample], Sample]
) -> RecordedTopics:
    """Every sample edited, what is none left as it is; the ledger judges the new records, and its chain is whole."""
    digests: dict[tuple[int, int], bytes] = {}
    for record in recorded.all(topics.samples):
        try:
            value = encode(edit(decode_as(Sample, record.value or b"")))
        except SchemaError:
            value = record.value or b""
        recorded = recorded.with_value(record, value)
        digests[record.partition, record.offset] = record_digest(value)

    def rejudge(record: LedgerRecord) -> LedgerRecord:
        verdicts = tuple(
            replace(verdict, digest=digests[verdict.partition, verdict.offset]) for verdict in record.verdicts
        )
        return replace(record, verdicts=verdicts)

    return recorded.rechained(topics.steps, rejudge)


def relabelled(sample: Sample, labels: dict[int, tuple[int, str]]) -> Sample:
    """Segments of some versions name others: version to (version, sha256)."""
    segments = tuple(
        replace(segment, version=labels[segment.version][0], weights_digest=labels[segment.version][1][:16])
        if segment.version in labels
        else segment
        for segment in sample.segments
    )
    return replace(sample, segments=segments)
