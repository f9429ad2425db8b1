"""Every metric of every role, in one class over an injected Prometheus registry.

An attribute is called like its metric without the `rollog_` in front and without `_total`:
`rollog_trainer_verdicts_total` is `metrics.trainer_verdicts`. Labels take few values; ids are never labels.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, start_http_server

from rollog.kernel.errors import ConfigError
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

_seconds_buckets = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_lag_buckets = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
_attempts_buckets = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_tokens_buckets = (
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
    32768.0,
)
_share_buckets = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One metric as documented."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Metrics:
    """All collectors; a role uses those of its stage.

    With `stage` (dispatcher, rollout, trainer) a scrape shows those of this stage and of the broker alone: a worker
    that showed a trainer's reward as 0 would mislead who looks at all roles together.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, stage: str | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._shown = None if stage is None else (f"rollog_{stage}_", "rollog_broker_")
        self._entries: list[CatalogueEntry] = []
        self._add_dispatcher()
        self._add_rollout()
        self._add_trainer()
        self._add_broker()

    @property
    def catalogue(self) -> tuple[CatalogueEntry, ...]:
        """All metrics in order of their definition."""
        return tuple(self._entries)

    def serve(self, host: str, port: int) -> MetricsServer:
        """Serve the registry over HTTP until the returned server is closed; port 0 takes any free one.

        Raises ConfigError when the address cannot be listened on.
        """
        return MetricsServer(self.registry, host, port)

    def _add_dispatcher(self) -> None:
        self.dispatcher_tasks_issued = self._counter(
            "rollog_dispatcher_tasks_issued_total",
            "Tasks issued, by kind (training, evaluation) and reason (first, failed, lost, stale ...)",
            ("kind", "reason"),
        )
        self.dispatcher_samples = self._counter(
            "rollog_dispatcher_samples_total", "Sample records read, by kind and status", ("kind", "status")
        )
        self.dispatcher_open_groups = self._gauge(
            "rollog_dispatcher_open_groups", "Groups issued and not closed in the ledger"
        )
        self.dispatcher_credits_free = self._gauge(
            "rollog_dispatcher_credits_free", "Tasks that could be issued now, over all workers"
        )
        self.dispatcher_rollouts_open = self._gauge(
            "rollog_dispatcher_rollouts_open", "Rollouts ordered whose samples are not in the log yet"
        )
        self.dispatcher_rollouts_waiting = self._gauge(
            "rollog_dispatcher_rollouts_waiting",
            "Rollouts that would be ordered now if workers had slots for them; 0 once nothing more is ordered",
        )
        self.dispatcher_workers = self._gauge(
            "rollog_dispatcher_workers", "Rollout workers that hold a grant and are heard"
        )
        self.dispatcher_leases_expired = self._counter(
            "rollog_dispatcher_leases_expired_total", "Grants revoked because their worker fell silent"
        )
        self.dispatcher_standing_still_seconds = self._gauge(
            "rollog_dispatcher_standing_still_seconds",
            "Time without a step while the run stands still, as the dispatcher sees it; 0 while steps come",
        )
        self.dispatcher_epoch = self._gauge("rollog_dispatcher_epoch", "Epoch under which tasks are issued")

    def _add_rollout(self) -> None:
        self.rollout_samples = self._counter(
            "rollog_rollout_samples_total", "Tasks ended, by kind and status", ("kind", "status")
        )
        self.rollout_slots_used = self._gauge("rollog_rollout_slots_used", "Slots in use")
        self.rollout_slots_capacity = self._gauge("rollog_rollout_slots_capacity", "Slots of the engine")
        self.rollout_scoring = self._gauge(
            "rollog_rollout_scoring", "Rollouts that are being scored, their slots free again"
        )
        self.rollout_tokens_generated = self._counter(
            "rollog_rollout_tokens_generated_total", "Response tokens generated"
        )
        self.rollout_wasted_tokens = self._counter(
            "rollog_rollout_wasted_tokens_total",
            "Tokens of tasks that did not finish, and of seats of an episode played without a sample, by status",
            ("reason",),
        )
        self.rollout_generation_seconds = self._histogram(
            "rollog_rollout_generation_seconds", "Time to generate one response", _seconds_buckets
        )
        self.rollout_reward_seconds = self._histogram(
            "rollog_rollout_reward_seconds", "Time to compute one reward", _seconds_buckets
        )
        self._add_episodes()
        self._add_sessions()
        self._add_reload()
        self._add_idle()

    def _add_episodes(self) -> None:
        self.rollout_episodes = self._counter(
            "rollog_rollout_episodes_total",
            "Episodes of environments: opened, failed, and of the failed those timed_out (a call took too long) and "
            "cancelled (in a call of the environment)",
            ("outcome",),
        )
        self.rollout_environment_kills = self._counter(
            "rollog_rollout_environment_kills_total", "Processes of environments that were killed"
        )
        self.rollout_environment_seconds = self._histogram(
            "rollog_rollout_environment_seconds", "Time of an environment for one answer", _seconds_buckets
        )

    def _add_sessions(self) -> None:
        self.rollout_sessions = self._counter(
            "rollog_rollout_sessions_total",
            "Sessions of agents, by end (returned, budget, cancelled, expired, time_out, idle, error)",
            ("end",),
        )
        self.rollout_turns = self._counter(
            "rollog_rollout_turns_total", "Calls of sessions whose tokens are recorded"
        )
        self.rollout_calls = self._counter(
            "rollog_rollout_calls_total",
            "Calls of sessions of which more is to say, by kind (forks, rejoined, superseded, overridden, constrained, "
            "foreign, closing, soft_boundary, stop_string, undelivered, refused, overlong)",
            ("kind",),
        )

    def _add_idle(self) -> None:
        self.rollout_idle_seconds = self._counter(
            "rollog_rollout_idle_seconds_total",
            "Time in which the worker served under a grant and no slot was in use",
        )
        self.rollout_free_slot_seconds = self._counter(
            "rollog_rollout_free_slot_seconds_total",
            "Slot-seconds left free while the worker served under a grant: each free slot counts by itself",
        )

    def _add_reload(self) -> None:
        self.rollout_reload_seconds = self._histogram(
            "rollog_rollout_reload_seconds",
            "Time to put one version in service, from its notice on (fetching, draining and retries included), by "
            "mode (keep, drain, abort)",
            _seconds_buckets,
            ("mode",),
        )
        self.rollout_fetch_seconds = self._histogram(
            "rollog_rollout_fetch_seconds",
            "Time to fetch and check one version, in which the version before it is served",
            _seconds_buckets,
        )
        self.rollout_reload_pause_seconds = self._histogram(
            "rollog_rollout_reload_pause_seconds",
            "Part of a reload in which the engine makes no tokens, after failed loads until the next one, by mode",
            _seconds_buckets,
            ("mode",),
        )
        self.rollout_reload_stall_seconds = self._histogram(
            "rollog_rollout_reload_stall_seconds",
            "Part of a reload in which a slot that had a rollout when no more were started computed nothing, mean "
            "over these slots, by mode",
            _seconds_buckets,
            ("mode",),
        )
        self.rollout_failed_loads = self._counter(
            "rollog_rollout_failed_loads_total", "Versions that could not be fetched or loaded, each attempt"
        )
        self.rollout_resumed = self._counter(
            "rollog_rollout_resumed_total", "Partial rollouts handed to the engine again under new weights"
        )
        self.rollout_turns_kept = self._counter(
            "rollog_rollout_turns_kept_total", "Turns on the log before their answers were used"
        )
        self.rollout_turns_served_again = self._counter(
            "rollog_rollout_turns_served_again_total",
            "Turns of earlier attempts that were not generated again",
        )
        self.rollout_resumptions = self._counter(
            "rollog_rollout_resumptions_total",
            "Rollouts that might be taken up from an earlier attempt, by what became of that",
            ("outcome",),
        )
        self.rollout_served_version = self._gauge(
            "rollog_rollout_served_version", "Policy version that the engine computes with; -1: none"
        )

    def _add_trainer(self) -> None:
        self.trainer_version = self._gauge("rollog_trainer_version", "Newest committed policy version")
        self.trainer_step_seconds = self._histogram(
            "rollog_trainer_step_seconds",
            "Time of one training step, by phase (wait, train, publish, commit, checkpoint, and write beside training)",
            _seconds_buckets,
            ("phase",),
        )
        self.trainer_wait_seconds = self._counter(
            "rollog_trainer_wait_seconds_total",
            "Time without a batch, by reason (samples, protected)",
            ("reason",),
        )
        self.trainer_standing_still_seconds = self._gauge(
            "rollog_trainer_standing_still_seconds",
            "Time without a step while the run stands still, as the trainer sees it; 0 while steps come",
        )
        self.trainer_verdicts = self._counter(
            "rollog_trainer_verdicts_total",
            "Samples judged, by disposition and reason (empty where there is none, or one in free words)",
            ("disposition", "reason"),
        )
        self._add_late_rewards()
        self.trainer_groups_closed = self._counter(
            "rollog_trainer_groups_closed_total",
            "Groups closed, by outcome (trained, filtered, incomplete)",
            ("outcome",),
        )
        self.trainer_groups_filtered = self._counter(
            "rollog_trainer_groups_filtered_total",
            "Groups filtered, by reason (zero_signal, mean_out_of_bounds, too_hard, too_easy, too_short, too_long, "
            "truncated)",
            ("reason",),
        )
        self.trainer_protected_waits = self._counter(
            "rollog_trainer_protected_waits_total",
            "Rollouts of protected groups that training waited for, counted as their group closes",
        )
        self.trainer_lag_versions = self._histogram(
            "rollog_trainer_lag_versions", "Lag of trained samples at consumption", _lag_buckets
        )
        self.trainer_tokens_trained = self._counter(
            "rollog_trainer_tokens_trained_total", "Response tokens of trained samples"
        )
        self.trainer_wasted_tokens = self._counter(
            "rollog_trainer_wasted_tokens_total",
            "Response tokens of samples that were not trained, by disposition",
            ("reason",),
        )
        self._add_selection()
        self._add_newest_step()
        self._add_distances()

    def _add_late_rewards(self) -> None:
        self.trainer_rewards = self._counter(
            "rollog_trainer_rewards_total",
            "Records of the topic of rewards, by what became of them",
            ["outcome"],
        )
        self.trainer_waiting_samples = self._gauge(
            "rollog_trainer_waiting_samples", "Fresh samples that wait for their reward"
        )
        self.trainer_longest_reward_wait_seconds = self._gauge(
            "rollog_trainer_longest_reward_wait_seconds",
            "How long the sample waits that waits longest for its reward",
        )

    def _add_newest_step(self) -> None:
        """What the newest step was made of, and the alpha of the next one."""
        self.trainer_reward_mean = self._gauge(
            "rollog_trainer_reward_mean", "Mean reward of the newest step's batch"
        )
        self.trainer_alpha = self._gauge(
            "rollog_trainer_alpha", "Asynchronous ratio in force for the next step"
        )
        self.trainer_effective_sample_size_ratio = self._gauge(
            "rollog_trainer_effective_sample_size_ratio",
            "Effective sample size of the newest batch's importance ratios, per token (1: on policy)",
        )
        self.trainer_divergence_nats = self._gauge(
            "rollog_trainer_divergence_nats",
            "KL(behaviour, current) of the newest batch, in nats per token",
        )

    def _add_distances(self) -> None:
        """How far the policy is from others, and what the loss made of it."""
        self.trainer_mismatch_nats = self._gauge(
            "rollog_trainer_mismatch_nats",
            "KL(behaviour, current) of the newest batch's tokens that the current version generated, per token: what "
            "inference engine and trainer differ by, without staleness",
        )
        self.trainer_staleness_nats = self._gauge(
            "rollog_trainer_staleness_nats",
            "KL(behaviour, current) of the newest batch's tokens that older versions generated, per token",
        )
        self.trainer_clipped_ratio = self._gauge(
            "rollog_trainer_clipped_ratio",
            "Share of the newest step's tokens whose gradient or weight the loss cut, by its own rule",
        )
        self.trainer_entropy_nats = self._gauge(
            "rollog_trainer_entropy_nats",
            "Mean entropy of the policy's next-token distributions in the newest step; only with an entropy bonus",
        )
        self.trainer_reference_divergence_nats = self._gauge(
            "rollog_trainer_reference_divergence_nats",
            "KL(current, reference model) in the newest step, per token; only with a divergence in the loss",
        )

    def _add_selection(self) -> None:
        """What tells trained samples from discarded ones."""
        self.trainer_attempts = self._histogram(
            "rollog_trainer_attempts",
            "Attempts up to the one that was trained, of each trained sample (1: the first)",
            _attempts_buckets,
        )
        self.trainer_response_tokens = self._histogram(
            "rollog_trainer_response_tokens",
            "Length of finished samples, by outcome (trained, discarded)",
            _tokens_buckets,
            ("outcome",),
        )
        self.trainer_sample_rewards = self._summary(
            "rollog_trainer_sample_rewards",
            "Rewards of finished samples, by outcome (trained, discarded)",
            ("outcome",),
        )
        self.trainer_group_pass_rate = self._histogram(
            "rollog_trainer_group_pass_rate",
            "Share of the responses of a complete group that reach groups.pass_reward, by outcome (trained, filtered)",
            _share_buckets,
            ("outcome",),
        )

    def _add_broker(self) -> None:
        self.broker_log_seconds = self._histogram(
            "rollog_broker_log_seconds",
            "Time the trainer waited for the log, by operation (commit, poll)",
            _seconds_buckets,
            ("operation",),
        )
        self.broker_dead_letters = self._counter(
            "rollog_broker_dead_letters_total",
            "Records that could not be decoded or validated, by topic (short name)",
            ("topic",),
        )

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        self._note(name, "counter", text, labels)
        return Counter(name, text, labels, registry=self._place_of(name))

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        self._note(name, "gauge", text, labels)
        return Gauge(name, text, labels, registry=self._place_of(name))

    def _histogram(
        self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        self._note(name, "histogram", text, labels)
        return Histogram(name, text, labels, registry=self._place_of(name), buckets=buckets)

    def _summary(self, name: str, text: str, labels: Sequence[str] = ()) -> Summary:
        self._note(name, "summary", text, labels)
        return Summary(name, text, labels, registry=self._place_of(name))

    def _place_of(self, name: str) -> CollectorRegistry | None:
        return self.registry if self._shown is None or name.startswith(self._shown) else None

    def _note(self, name: str, kind: str, text: str, labels: Sequence[str]) -> None:
        self._entries.append(CatalogueEntry(name=name, kind=kind, labels=tuple(labels), help=text))


class MetricsServer(Component):
    """A registry served over HTTP under `/metrics`."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        try:
            self._server, self._thread = _listen(registry, host, port)
        except OSError as error:
            raise ConfigError(_listen_failure(error, host, port)) from error
        self.host = host
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop listening; calling it again does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _listen(registry: CollectorRegistry, host: str, port: int) -> tuple[WSGIServer, Thread]:
    return start_http_server(port, addr=host, registry=registry)


def _listen_failure(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"metrics.port = {port}: another process listens on {host}:{port} already; "
            "choose another port, or 0 for any free one"
        )
    reason = error.strerror or error
    return f"metrics cannot be served on {host}:{port}: {reason}; check metrics.host and metrics.port"


def catalogue_table(entries: Iterable[CatalogueEntry] | None = None) -> str:
    """The catalogue as a Markdown table, one row per metric."""
    rows = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for entry in Metrics().catalogue if entries is None else entries:
        labels = ", ".join(f"`{label}`" for label in entry.labels) or "-"
        rows.append(f"| `{entry.name}` | {entry.kind} | {labels} | {entry.help} |")
    return "\n".join(rows) + "\n"
