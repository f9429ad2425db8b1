"""Kafka headers of samples against the records: a dispatcher decides by the headers, a trainer by the records.

Where they differ nothing is trained twice and nothing is lost, but something may have been issued for nothing, or late.
Records without a summary are read by dispatchers, too: nothing of them can differ.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from consumers.audit.samples import segments_of

if TYPE_CHECKING:
    from consumers.audit.findings import Check, Place
    from rollog.kernel.broker.ports import Record
    from schemas import Sample


def check_headers(check: Check, record: Record, sample: Sample | None, place: Place) -> bool:
    """Whether the headers of a sample that was not judged dead say what the record does, where they say anything."""
    summary = _summary(record)
    if summary is None or sample is None:
        return True
    check.num_checked += 1
    said = {name: _text(record.header(name)) for name in _identity(sample)} | summary
    expected = _identity(sample) | _facts(sample)
    faults = {name: (value, said.get(name)) for name, value in expected.items() if said.get(name) != value}
    if faults:
        check.find(
            "the headers of the record say something else than the record: its dispatcher was told wrong",
            place=place,
            record_id=sample.sample_id,
            expected=", ".join(f"{name} {value!r}" for name, (value, _) in faults.items()),
            found=", ".join(f"{name} {value!r}" for name, (_, value) in faults.items())[:400],
        )
    return not faults


def _identity(sample: Sample) -> dict[str, Any]:
    """What stands in headers of its own."""
    return {
        "task_id": sample.task_id,
        "sample_id": sample.sample_id,
        "status": sample.status.value,
        "group_id": str(sample.group_id),
        "replica": str(sample.replica),
        "attempt": str(sample.attempt),
    }


def _facts(sample: Sample) -> dict[str, Any]:
    """What stands in the summary; a key that is left out there reads as None, False, 0 or nothing here."""
    versions = {(each.version, each.weights_digest): None for each in segments_of(sample)}
    return {
        "worker": sample.worker_id,
        "grant": sample.grant_id,
        "seed": sample.seed,
        "reward": sample.reward,
        "tokens": sample.num_sampled_tokens,
        "cut": sample.is_truncated,
        "versions": [list(each) for each in versions],
        "waits": sample.awaits_reward,
        "cancel": sample.cancel_reason,
    }


def _summary(record: Record) -> dict[str, Any] | None:
    """The summary in the headers; None where there is none that anybody could go by."""
    try:
        read = json.loads(record.header("summary") or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    absent: dict[str, Any] = {
        "seed": 0,
        "reward": None,
        "tokens": 0,
        "cut": False,
        "versions": [],
        "waits": False,
        "cancel": None,
    }
    return absent | read


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
