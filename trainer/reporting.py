"""What the trainer tells metrics and logs: bounded labels, one log line per step."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from rollog.kernel.logs import get_logger
from rollog.rules.filtering import pass_rate
from rollog.rules.ledger_state import filter_reasons
from rollog.rules.reasons import named_reasons
from schemas import Disposition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollog.kernel.metrics import Metrics
    from rollog.rules.headers import SampleHeader
    from rollog.rules.late_rewards import RewardOutcome
    from rollog.settings.groups import GroupConfig
    from schemas import DeadLetter, LedgerRecord, Step, Verdict
    from trainer.buffer.reward_waits import RewardWaits

log = get_logger("trainer")

whole_groups = (Disposition.TRAINED, Disposition.FILTERED)
"""Dispositions that all G members of a group get at once."""


class Reporter:
    """Feeds the trainer's metrics and log."""

    def __init__(self, metrics: Metrics, groups: GroupConfig) -> None:
        self._metrics = metrics
        self._groups = groups
        self._num_rewards: Counter[RewardOutcome] = Counter()

    def ready(self, version: int, alpha: float) -> None:
        """The trainer is at `version`, and the next step is taken with `alpha`."""
        self._metrics.trainer_version.set(version)
        self._metrics.trainer_alpha.set(alpha)

    def waited(self, seconds: float, *, is_held: bool) -> None:
        """No batch for so long; `is_held` when only a protected group was in the way."""
        reason = "protected" if is_held else "samples"
        self._metrics.trainer_wait_seconds.labels(reason=reason).inc(seconds)

    def polled(self, seconds: float) -> None:
        """A poll for samples took so long."""
        self._metrics.broker_log_seconds.labels(operation="poll").observe(seconds)

    def committed(self, seconds: float, dead_letters: Iterable[DeadLetter]) -> None:
        """A transaction with these dead letters took so long."""
        self._metrics.broker_log_seconds.labels(operation="commit").observe(seconds)
        for letter in dead_letters:
            self._metrics.broker_dead_letters.labels(topic=letter.topic.rsplit(".", 1)[-1]).inc()

    def rewards(self, num_by_outcome: Mapping[RewardOutcome, int], waits: RewardWaits, now: float) -> None:
        """Records of `rewards` that this trainer has read so far, and the samples that wait for one."""
        for outcome, num in num_by_outcome.items():
            self._metrics.trainer_rewards.labels(outcome=outcome.value).inc(num - self._num_rewards[outcome])
            self._num_rewards[outcome] = num
        self._metrics.trainer_waiting_samples.set(len(waits))
        self._metrics.trainer_longest_reward_wait_seconds.set(waits.longest_seconds(now))

    def judged(self, verdicts: Iterable[tuple[Verdict, SampleHeader]]) -> None:
        """Dispositions that one record has brought into the ledger."""
        metrics = self._metrics
        rewards: defaultdict[tuple[int, Disposition], list[float]] = defaultdict(list)
        for verdict, header in verdicts:
            reason = verdict.reason if verdict.reason in named_reasons else ""
            metrics.trainer_verdicts.labels(disposition=verdict.disposition.value, reason=reason).inc()
            if verdict.disposition is Disposition.TRAINED:
                metrics.trainer_tokens_trained.inc(header.num_tokens)
                metrics.trainer_lag_versions.observe(verdict.lag or 0)
                metrics.trainer_attempts.observe(header.attempt + 1)
            else:
                wasted = header.num_tokens or header.wasted_tokens
                metrics.trainer_wasted_tokens.labels(reason=verdict.disposition.value).inc(wasted)
            if header.reward is not None and header.defect is None:
                self._selected(header, header.reward, verdict.disposition)
                rewards[verdict.group_id, verdict.disposition].append(header.reward)
        for (_, disposition), of_group in rewards.items():
            if disposition in whole_groups:
                passing = pass_rate(of_group, self._groups.pass_reward)
                metrics.trainer_group_pass_rate.labels(outcome=disposition.value).observe(passing)

    def closed(self, record: LedgerRecord) -> None:
        """The groups that this record closes are closed in the ledger now."""
        for group in record.closed_groups:
            self._metrics.trainer_groups_closed.labels(outcome=group.outcome.value).inc()
            self._metrics.trainer_protected_waits.inc(group.protected_waits)
            if group.outcome is Disposition.INCOMPLETE:
                log.warning("group given up", group=group.group_id)
        for reason in filter_reasons(record).values():
            self._metrics.trainer_groups_filtered.labels(reason=reason).inc()

    def stepped(
        self, record: LedgerRecord, body: Step, commit_seconds: float, write_seconds: float | None = None
    ) -> None:
        """A training step is in the ledger now; `write_seconds` are those of its weights beside training."""
        seconds = {
            "wait": body.timings.wait_seconds,
            "train": body.timings.train_seconds,
            "publish": body.timings.publish_seconds,
            "commit": commit_seconds,
        }
        if write_seconds is not None:
            seconds["write"] = write_seconds
        for phase, value in seconds.items():
            self._metrics.trainer_step_seconds.labels(phase=phase).observe(value)
        self.ready(record.version, record.alpha)
        self._metrics.trainer_reward_mean.set(body.reward_mean)
        self._measured(body.statistics)
        log.info("step committed", **_step_fields(record, body), **_named_seconds(seconds))
        if record.alpha != body.alpha:
            log.info("alpha changed", version=record.version, alpha=record.alpha, before=body.alpha)

    def checkpointed(self, name: str, seconds: float) -> None:
        """A checkpoint is complete."""
        self._metrics.trainer_step_seconds.labels(phase="checkpoint").observe(seconds)
        log.info("checkpoint saved", checkpoint=name, seconds=seconds)

    def _selected(self, header: SampleHeader, reward: float, disposition: Disposition) -> None:
        """How long and how well rewarded a finished sample was, trained or discarded."""
        outcome = "trained" if disposition is Disposition.TRAINED else "discarded"
        self._metrics.trainer_response_tokens.labels(outcome=outcome).observe(header.num_tokens)
        self._metrics.trainer_sample_rewards.labels(outcome=outcome).observe(reward)

    def _measured(self, statistics: Mapping[str, float]) -> None:
        """How far off policy the step was, where that was measured."""
        gauges = {
            "first_effective_sample_size": self._metrics.trainer_effective_sample_size_ratio,
            "first_divergence": self._metrics.trainer_divergence_nats,
            "mismatch_divergence": self._metrics.trainer_mismatch_nats,
            "stale_divergence": self._metrics.trainer_staleness_nats,
            "clip_fraction": self._metrics.trainer_clipped_ratio,
            "entropy": self._metrics.trainer_entropy_nats,
            "reference_divergence": self._metrics.trainer_reference_divergence_nats,
        }
        for name, gauge in gauges.items():
            if name in statistics:
                gauge.set(statistics[name])


def _step_fields(record: LedgerRecord, body: Step) -> dict[str, object]:
    return {
        "version": record.version,
        "reward": body.reward_mean,
        "loss": sum(body.losses) / len(body.losses),
        "lag": max(map(int, body.lags)),
        "alpha": body.alpha,
        "groups": body.num_groups,
        "samples": body.num_samples,
        "tokens": body.num_tokens,
    }


def _named_seconds(seconds: Mapping[str, float]) -> dict[str, float]:
    return {f"{phase}_seconds": value for phase, value in seconds.items()}
