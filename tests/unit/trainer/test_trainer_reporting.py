"""What the trainer's metrics say of the records it commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.builders import LedgerBuilder, a_header, freshness_config, groups_config

from rollog.kernel.metrics import Metrics
from schemas import Status
from trainer.buffer.sample_buffer import SampleBuffer
from trainer.reporting import Reporter

if TYPE_CHECKING:
    from rollog.rules.headers import SampleHeader


class Turner:
    """A buffer over a ledger, and a reporter that hears of every record."""

    def __init__(self, *headers: SampleHeader, alpha: float = 1.0) -> None:
        groups = groups_config(groups_per_batch=1, pass_rate_bounds=(0.0, 0.5), pass_reward=0.5)
        self.ledger = LedgerBuilder(alpha)
        self.buffer = SampleBuffer(self.ledger.state, groups, freshness_config())
        self.metrics = Metrics()
        self._reporter = Reporter(self.metrics, groups)
        self._headers: dict[tuple[int, int], SampleHeader] = {}
        self.hear(*headers)

    def hear(self, *headers: SampleHeader) -> None:
        for header in headers:
            self._headers[header.place] = header
            self.buffer.add(header)

    def publish(self, now: float = 0.0) -> None:
        record = self.ledger.publish(self.buffer, self.buffer.next_batch(now) or ())
        self._reporter.closed(record)
        self._reporter.judged(
            (verdict, self._headers[(verdict.partition, verdict.offset)]) for verdict in record.verdicts
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"rollog_trainer_{name}", labels)


def test_verdicts_are_counted_by_disposition_and_reason_and_free_words_are_no_label() -> None:
    turner = Turner(
        a_header(0, 0, offset=0, reward=0.7),
        a_header(0, 1, offset=1, reward=0.9),
        a_header(1, 0, offset=0, status=Status.CANCELLED, cancel_reason="surplus", reward=None),
        a_header(1, 0, offset=1, defect="a sample of kind evaluation does not belong here"),
    )
    turner.publish()

    assert turner.value("verdicts_total", disposition="filtered", reason="too_easy") == 2
    assert turner.value("verdicts_total", disposition="cancelled", reason="surplus") == 1
    assert turner.value("verdicts_total", disposition="dead", reason="") == 1
    assert turner.value("groups_filtered_total", reason="too_easy") == 1


def test_trained_and_discarded_samples_are_told_apart_by_length_and_reward() -> None:
    turner = Turner(
        a_header(0, 0, offset=0, num_tokens=5, reward=0.0),
        a_header(0, 1, offset=1, num_tokens=7, reward=1.0),
        a_header(1, 0, offset=0, num_tokens=20, reward=0.6),
        a_header(1, 1, offset=1, num_tokens=30, reward=0.8),
        a_header(2, 0, offset=0, num_tokens=90, wasted_tokens=90, status=Status.CANCELLED, reward=None),
    )
    turner.publish()

    assert turner.value("response_tokens_sum", outcome="trained") == 12
    assert turner.value("response_tokens_count", outcome="trained") == 2
    assert turner.value("response_tokens_sum", outcome="discarded") == 50
    assert turner.value("sample_rewards_sum", outcome="trained") == 1.0
    assert turner.value("sample_rewards_sum", outcome="discarded") == 1.4
    assert turner.value("sample_rewards_count", outcome="discarded") == 2
    assert turner.value("group_pass_rate_sum", outcome="trained") == 0.5
    assert turner.value("group_pass_rate_sum", outcome="filtered") == 1.0
    assert turner.value("group_pass_rate_count", outcome="filtered") == 1
    assert turner.value("wasted_tokens_total", reason="filtered") == 50
    assert turner.value("wasted_tokens_total", reason="cancelled") == 90


def test_attempts_are_those_up_to_the_one_that_was_trained() -> None:
    turner = Turner(
        a_header(0, 0, offset=0, attempt=0, status=Status.FAILED, reward=None),
        a_header(0, 0, offset=1, attempt=2),
        a_header(0, 1, offset=2, attempt=0),
    )
    turner.publish()

    assert turner.value("attempts_count") == 2
    assert turner.value("attempts_sum") == 3 + 1


def test_rollouts_that_training_waited_for_are_counted_as_their_group_closes() -> None:
    turner = Turner(alpha=0.0)
    turner.ledger.step()
    turner.hear(a_header(0, 0, offset=0, version=0))
    turner.publish()
    turner.hear(*(a_header(1, replica, offset=replica, version=1) for replica in range(2)))
    assert turner.buffer.next_batch(1.0) is None
    assert turner.value("protected_waits_total") == 0
    turner.hear(*(a_header(0, replica, offset=1 + replica, version=1) for replica in range(2)))
    turner.publish(2.0)

    assert turner.value("protected_waits_total") == 1
    assert turner.value("verdicts_total", disposition="stale", reason="lag") == 1
