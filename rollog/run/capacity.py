"""What a run has stored, part by part, and what more samples would take. Consumes every topic of the run.

part        bytes of the run     for each trained sample     of a million samples
samples     2.9 MB               1.4 KB                      1.4 GB
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumers.ledger import StoredLedger
from rollog.kernel.broker.reading import read_topic
from rollog.kernel.broker.topics import run_topic_names
from rollog.kernel.errors import DataError
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.sizes import readable_bytes
from schemas import Disposition, LedgerKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollog.kernel.broker.ports import Record
    from rollog.run.recorded_run import RecordedRun

_bytes_of_a_place = 12
"""About what Kafka adds to a record within a batch: lengths, offset and time."""
_files, _objects = "weights files", "objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Bytes by part: topics by their names within the run, `weights files` of all versions, `objects`."""

    num_bytes: Mapping[str, int]
    num_trained: int
    num_steps: int
    replicas: int
    """Copies of each topic that its cluster keeps; weights and objects are counted once."""

    def of_samples(self, num_samples: int) -> dict[str, float]:
        """Bytes by part of a run that trains so many samples in batches of the same size, copies included.

        Raises DataError where nothing was trained yet.
        """
        if self.num_trained == 0:
            raise DataError(
                "no sample was trained yet: nothing can be said of more; ask when the run has made steps"
            )
        return {
            part: num_bytes * self._copies(part) * num_samples / self.num_trained
            for part, num_bytes in self.num_bytes.items()
        }

    def lines(self, num_samples: int, price: float | None) -> Iterator[str]:
        """For a person. `price` is that of a GB (1e9 bytes) and month, in any currency."""
        future = self.of_samples(num_samples)
        copies = f", {self.replicas} copies of each topic" if self.replicas > 1 else ""
        yield f"{self.num_trained} samples trained in {self.num_steps} steps; bytes of records, uncompressed"
        yield f"{'part':<14}{'stored':>12}{'per sample':>14}{f'{num_samples:,} samples':>22}"
        for part, num_bytes in self.num_bytes.items():
            yield (
                f"{part:<14}{readable_bytes(num_bytes):>12}{readable_bytes(num_bytes / self.num_trained):>14}"
                f"{readable_bytes(future[part]):>22}"
            )
        total = sum(future.values())
        yield f"{num_samples:,} samples: {readable_bytes(total)}{copies}, nothing pruned"
        if price is not None:
            yield f"at {price:g} a GB and month: {total / 1e9 * price:,.2f} a month"

    def as_json(self, num_samples: int) -> dict[str, Any]:
        """For programs."""
        return {
            "num_bytes": dict(self.num_bytes),
            "num_trained": self.num_trained,
            "num_steps": self.num_steps,
            "replicas": self.replicas,
            "num_samples": num_samples,
            "num_bytes_of_samples": self.of_samples(num_samples),
        }

    def _copies(self, part: str) -> int:
        return 1 if part in {_files, _objects} else self.replicas


def capacity_of(run: RecordedRun) -> Capacity:
    """Read what a run has stored. Raises TopicMismatch, LedgerError, WeightsError."""
    sizes = {}
    with run.broker.admin() as admin:
        there = admin.describe_topics(run_topic_names(run.topics))
    for topic in there:
        records = read_topic(run.broker, topic, client_id="capacity")
        sizes[topic.rsplit(".", 1)[-1]] = sum(map(_stored_bytes, records))
    sizes[_files] = run.store.num_bytes
    sizes[_objects] = PayloadStore(run.store, run.topics).num_bytes
    trained = steps = 0
    for entry in StoredLedger(run.broker, run.topics):
        steps += entry.record.kind is LedgerKind.STEP
        trained += sum(verdict.disposition is Disposition.TRAINED for verdict in entry.record.verdicts)
    return Capacity(
        num_bytes=sizes,
        num_trained=trained,
        num_steps=steps,
        replicas=run.settings.broker.replication_factor,
    )


def _stored_bytes(record: Record) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers + _bytes_of_a_place
