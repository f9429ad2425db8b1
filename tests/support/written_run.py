"""A run as its topics would show it, written record by record without any role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.topics import topic_specs
from rollog.rules.ledger_state import no_hash, record_hash
from rollog.settings.run import BrokerConfig
from schemas import (
    Close,
    ClosedGroup,
    Disposition,
    Genesis,
    LedgerKind,
    LedgerRecord,
    MicroBatch,
    Step,
    StepTimings,
    Verdict,
)
from schemas.codec import encode

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Broker, Producer
    from rollog.kernel.broker.topics import RunTopics
    from schemas.records import Record


class WrittenRun:
    """Writes what the roles of a run would write; topics that are missing are created with two samples partitions.

    `manifest_json` is that of the run's manifest, where it has one.
    """

    def __init__(self, broker: Broker, topics: RunTopics, manifest_json: str = "{}") -> None:
        self.broker = broker
        self._manifest_json = manifest_json
        self.topics = topics
        with broker.admin() as admin:
            admin.create_topics(topic_specs(topics, BrokerConfig(samples_partitions=2)))
        self._producer: Producer = self.broker.producer(client_id="roles")
        self._head, self._sequence = no_hash, 0

    def write(
        self, topic: str, record: Record | None, *, partition: int = 0, key: bytes | None = None
    ) -> None:
        self._producer.send(topic, partition, None if record is None else encode(record), key=key)
        self._producer.flush(10)

    def ledger(
        self,
        kind: LedgerKind,
        version: int,
        body: Genesis | Step | Close | None,
        verdicts: tuple[Verdict, ...] = (),
        closed_groups: tuple[ClosedGroup, ...] = (),
    ) -> None:
        record = LedgerRecord(
            kind=kind,
            sequence=self._sequence,
            version=version,
            alpha=1.0,
            previous_hash=self._head,
            low_water_marks=(0, 0),
            verdicts=verdicts,
            closed_groups=closed_groups,
            body=body,
        )
        self._head, self._sequence = record_hash(encode(record)), self._sequence + 1
        self.write(self.topics.steps, record)

    def genesis(self) -> None:
        body = Genesis(
            manifest_json=self._manifest_json,
            weights_sha256="0" * 64,
            model_config_json="{}",
            versions={"torch": "2"},
            machine="x86_64",
            world_size=1,
            zero_stage=1,
            dtype="float32",
        )
        self.ledger(LedgerKind.GENESIS, 0, body)

    def step(
        self,
        version: int,
        *,
        reward: float,
        lags: dict[str, int],
        train_seconds: float = 0.0,
        publish_seconds: float = 0.0,
        num_epochs: int = 0,
    ) -> None:
        """A step that trains two samples; its plan names them `num_epochs` times."""
        body = Step(
            weights_sha256_before=f"{version - 1:064d}",
            weights_sha256=f"{version:064d}",
            alpha=1.0,
            revision=0,
            seed=0,
            plan=(MicroBatch(minibatch=0, rank=0, positions=(0, 1)),) * num_epochs,
            losses=(0.5,),
            gradient_norms=(1.0,),
            learning_rates=(0.1,),
            reward_mean=reward,
            num_groups=1,
            num_samples=2,
            num_tokens=20,
            lags=lags,
            timings=StepTimings(
                wait_seconds=0.25, train_seconds=train_seconds, publish_seconds=publish_seconds
            ),
        )
        verdicts = tuple(
            a_verdict(offset, Disposition.TRAINED) for offset in range(2 * version - 2, 2 * version)
        )
        self.ledger(LedgerKind.STEP, version, body, verdicts)

    def close(self, version: int = 0, *, end_offsets: tuple[int, ...] = (0, 0), reason: str = "done") -> None:
        self.ledger(LedgerKind.CLOSE, version, Close(end_offsets=end_offsets, reason=reason))

    def break_chain(self) -> None:
        """Let the next ledger record name a wrong predecessor."""
        self._head = bytes(31) + b"x"


def a_verdict(offset: int, disposition: Disposition, reason: str = "") -> Verdict:
    return Verdict(
        partition=0,
        offset=offset,
        sample_id=f"g{offset}.r0.a0",
        digest=bytes(16),
        group_id=offset,
        replica=0,
        disposition=disposition,
        reason=reason,
    )
