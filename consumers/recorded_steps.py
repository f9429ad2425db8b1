"""The training steps and the verdicts of a run as rows, and steps as they come.

Consumes `steps`, read_committed, with its chain verified; produces nothing. Holds one ledger record at a time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from consumers.ledger import StoredLedger
from consumers.tables import column_types
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.lifecycle import Component
from rollog.rules.ledger_chain import LedgerChain
from schemas import Close, LedgerRecord, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumers.tables import Row
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics

step_columns = column_types(
    whole="step max_lag num_groups num_samples num_tokens",
    real="reward alpha loss gradient_norm learning_rate wait_seconds train_seconds publish_seconds",
    text="weights_sha256",
)

verdict_columns = column_types(
    whole="sequence version partition offset group_id replica lag",
    text="sample_id disposition reason",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """One training step that is in the ledger.

    `step` is also the version that it made. `reward` is the mean of its samples, `max_lag` the largest number of
    versions that one of them was behind, `alpha` what bounds it. `loss`, `gradient_norm` and `learning_rate` are means
    over its optimizer steps, None where the ledger has none. The trainer waited, trained and published for so many
    seconds.
    """

    step: int
    reward: float
    max_lag: int
    alpha: float
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None
    num_groups: int
    num_samples: int
    num_tokens: int
    wait_seconds: float
    train_seconds: float
    publish_seconds: float
    weights_sha256: str


def steps_of(broker: Broker, topics: RunTopics) -> Iterator[TrainedStep]:
    """The steps that the ledger holds now. Raises LedgerError for a broken chain."""
    for entry in StoredLedger(broker, topics):
        step = trained_step(entry.record)
        if step is not None:
            yield step


def step_rows(broker: Broker, topics: RunTopics) -> Iterator[Row]:
    """The same as rows of `step_columns`."""
    return (asdict(step) for step in steps_of(broker, topics))


def verdict_rows(broker: Broker, topics: RunTopics) -> Iterator[Row]:
    """What became of each sample: one row of `verdict_columns` per verdict, in the order of the ledger.

    `version` is that of the ledger record with the verdict, which for trained samples is their step.
    """
    for entry in StoredLedger(broker, topics):
        record = entry.record
        for verdict in record.verdicts:
            yield {
                "sequence": record.sequence,
                "version": record.version,
                "partition": verdict.partition,
                "offset": verdict.offset,
                "sample_id": verdict.sample_id,
                "group_id": verdict.group_id,
                "replica": verdict.replica,
                "disposition": verdict.disposition.value,
                "lag": verdict.lag,
                "reason": verdict.reason,
            }


def trained_step(record: LedgerRecord) -> TrainedStep | None:
    """The step that a ledger record is of, if it is of one."""
    body = record.body
    if not isinstance(body, Step):
        return None
    return TrainedStep(
        step=record.version,
        reward=body.reward_mean,
        max_lag=max((int(lag) for lag, count in body.lags.items() if count), default=0),
        alpha=body.alpha,
        loss=_mean(body.losses),
        gradient_norm=_mean(body.gradient_norms),
        learning_rate=_mean(body.learning_rates),
        num_groups=body.num_groups,
        num_samples=body.num_samples,
        num_tokens=body.num_tokens,
        wait_seconds=body.timings.wait_seconds,
        train_seconds=body.timings.train_seconds,
        publish_seconds=body.timings.publish_seconds,
        weights_sha256=body.weights_sha256,
    )


class StepFollower(Component):
    """Gives each step of a run once, the first one first. `is_over` tells when the ledger is closed."""

    def __init__(self, broker: Broker, topics: RunTopics) -> None:
        self._chain = LedgerChain()
        self.is_over = False
        self._place = TopicPartition(topics.steps, 0)
        self._consumer = broker.consumer(client_id="step-follower")
        self._consumer.assign(self._consumer.beginning_offsets([self._place]))

    def close(self) -> None:
        """Close the consumer. Idempotent."""
        self._consumer.close()

    @property
    def is_at_end(self) -> bool:
        """Whether everything was read that the ledger holds now, which a poll without a step does not show."""
        return self._consumer.position(self._place) >= self._consumer.end_offsets([self._place])[self._place]

    def poll(self, timeout_seconds: float = 0.0) -> list[TrainedStep]:
        """The steps that have come since. Raises LedgerError for a broken chain, BrokerError for a silent broker."""
        found = []
        for record in self._consumer.poll(timeout_seconds):
            taken = self._chain.take(record)
            if taken is None:
                continue
            self.is_over = self.is_over or isinstance(taken[0].body, Close)
            step = trained_step(taken[0])
            if step is not None:
                found.append(step)
        return found


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
