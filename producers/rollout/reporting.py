"""What a worker reports of itself: heartbeats and metrics."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from rollog.kernel.errors import RewardError
from schemas import Status, WorkerState, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import Engine
    from producers.rollout.session import WorkerSession
    from rollog.kernel.metrics import Metrics
    from schemas import Sample

_most_failures = 16
_other_failures = "others"
_most_characters = 200


class ReloadTimes(NamedTuple):
    """Seconds of one reload."""

    reload_seconds: float
    """From the beginning of its fetch until the version is served."""
    stall_seconds: float
    """In which a slot computed nothing, mean over the slots that had a rollout when no more were started."""
    pause_seconds: float
    """In which the engine made no tokens."""


class ReloadStopwatch:
    """How long one reload takes, and how long it holds rollouts up. All times are of one monotonic clock.

    Until the worker starts no more tasks nothing is held up. From then on a slot that had a rollout stalls from the
    moment its rollout ends, because no other is begun, or from the moment the engine is paused, whichever comes first.
    """

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._paused_since: float | None = None
        self._num_slots: int | None = None
        self._idle_since: list[float] = []

    def begin(self, now: float) -> None:
        """Start timing a reload; a repeated attempt belongs to the reload that is timed already."""
        if self._began_at is None:
            self._began_at = now

    def held(self, num_running: int) -> None:
        """Note that no task is started from here on, while so many rollouts generate."""
        if self._num_slots is None:
            self._num_slots = num_running

    def released(self) -> None:
        """Note that tasks are started again, before the reload's end, unless the engine is paused."""
        if self._paused_since is None:
            self._num_slots = None
            self._idle_since = []

    def rollout_ended(self, now: float) -> None:
        """Note a slot that became free: if no task is started, it stalls until the end of the reload."""
        if self._num_slots is not None and len(self._idle_since) < self._num_slots:
            self._idle_since.append(now if self._paused_since is None else min(now, self._paused_since))

    def paused(self, now: float, num_running: int) -> None:
        """Note that the engine makes no tokens from here on."""
        self.held(num_running)
        if self._paused_since is None:
            self._paused_since = now

    def end(self, now: float) -> ReloadTimes:
        """Stop timing."""
        assert self._began_at is not None, "a version is fetched before it is loaded"
        assert self._paused_since is not None, "a version is loaded into a paused engine"
        num_stopped = (self._num_slots or 0) - len(self._idle_since)
        pause_seconds = now - self._paused_since
        stalls = [*(now - since for since in self._idle_since), *[pause_seconds] * num_stopped]
        reload_seconds = now - self._began_at
        self._began_at = self._paused_since = self._num_slots = None
        self._idle_since = []
        return ReloadTimes(reload_seconds, sum(stalls) / len(stalls) if stalls else 0.0, pause_seconds)


class WorkerReport:
    """Counts what a worker did and says what it is doing.

    `reload` is the mode, a label of its metrics; `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        session: WorkerSession,
        engine: Engine,
        metrics: Metrics,
        *,
        capacity: int,
        reload: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._clock = clock
        self._engine = engine
        self._metrics = metrics
        self._capacity = capacity
        self._reload = reload
        self._stopwatch = ReloadStopwatch()
        self._fetching_since = 0.0
        self._host = socket.gethostname()
        self._started_at = self._observed_at = self._clock()
        self._busy_seconds = 0.0
        self._num_ended = 0
        self._num_tokens = 0
        self._num_reloads = 0
        self._reload_seconds = 0.0
        self._failures: Counter[str] = Counter()
        metrics.rollout_slots_capacity.set(capacity)

    def observe(self) -> None:
        """Take note of what the worker is doing now; call it often."""
        now, num_running = self._clock(), self._session.num_running
        seconds, self._observed_at = now - self._observed_at, now
        if self._session.num_generating:
            self._busy_seconds += seconds
        if self._session.grant is not None and self._session.state is WorkerState.SERVING:
            num_free = max(0, self._capacity - num_running)
            self._metrics.rollout_free_slot_seconds.inc(num_free * seconds)
            self._metrics.rollout_idle_seconds.inc(0.0 if num_running else seconds)
        self._metrics.rollout_slots_used.set(num_running)
        self._metrics.rollout_scoring.set(self._session.num_scoring)

    def ended(self, sample: Sample) -> None:
        """Count a sample by kind and status, with its tokens and seconds."""
        metrics = self._metrics
        num_tokens = sample.num_sampled_tokens + sample.wasted_tokens
        self._num_ended += 1
        self._num_tokens += num_tokens
        metrics.rollout_samples.labels(sample.kind.value, sample.status.value).inc()
        metrics.rollout_tokens_generated.inc(num_tokens)
        if sample.status is Status.FAILED:
            self._count_failure(failure_name(sample))
        if sample.status is Status.FINISHED:
            metrics.rollout_generation_seconds.observe(sample.timings.generation_seconds)
            metrics.rollout_reward_seconds.observe(sample.timings.reward_seconds)
        if sample.wasted_tokens:
            metrics.rollout_wasted_tokens.labels(sample.status.value).inc(sample.wasted_tokens)

    def _count_failure(self, name: str) -> None:
        has_room = name in self._failures or len(self._failures) < _most_failures
        self._failures[name if has_room else _other_failures] += 1

    def slot_freed(self) -> None:
        """Note a slot in which no more tokens are made."""
        self._stopwatch.rollout_ended(self._clock())

    def resumed(self) -> None:
        """Count a partial rollout that was handed to the engine again."""
        self._metrics.rollout_resumed.inc()

    def fetch_begins(self) -> None:
        """Start timing a fetch, and with the first one a reload."""
        self._fetching_since = self._clock()
        self._stopwatch.begin(self._fetching_since)

    def fetched(self) -> None:
        """Time a fetch that has ended, as the session knows; with `drain` no task may be started from now on."""
        self._metrics.rollout_fetch_seconds.observe(self._clock() - self._fetching_since)
        if self._session.state is WorkerState.RELOADING:
            self._stopwatch.held(self._session.num_generating)

    def engine_pauses(self) -> None:
        """Note that the engine is being paused for a reload."""
        self._stopwatch.paused(self._clock(), self._session.num_generating)

    def reloaded(self, version: int) -> None:
        """Count a reload that ended with this version in service."""
        times = self._stopwatch.end(self._clock())
        self._num_reloads += 1
        self._reload_seconds += times.reload_seconds
        metrics, mode = self._metrics, self._reload
        metrics.rollout_reload_seconds.labels(mode).observe(times.reload_seconds)
        metrics.rollout_reload_stall_seconds.labels(mode).observe(times.stall_seconds)
        metrics.rollout_reload_pause_seconds.labels(mode).observe(times.pause_seconds)
        metrics.rollout_served_version.set(version)

    def reload_given_up(self) -> None:
        """Note that a version was disowned or not loaded: if another one is served, tasks are started again."""
        self._stopwatch.released()

    def load_failed(self) -> None:
        """Count a version that could not be fetched or loaded, as the session knows."""
        self._metrics.rollout_failed_loads.inc()
        if self._session.served is None:
            self._metrics.rollout_served_version.set(-1)

    def dead_letter(self, topic: str) -> None:
        """Count a record that could not be used."""
        self._metrics.broker_dead_letters.labels(topic).inc()

    def status(self, open_tasks: Sequence[str]) -> WorkerStatus:
        """The heartbeat of this moment."""
        session = self._session
        served, grant = session.served, session.grant
        return WorkerStatus(
            worker_id=session.worker_id,
            state=session.state,
            capacity=self._capacity,
            served_version=None if served is None else served.version,
            served_digest=None if served is None else served.digest,
            grant_id=None if grant is None else grant.grant_id,
            epoch=session.epoch,
            tasks_position=session.tasks_position,
            open_tasks=tuple(dict.fromkeys(open_tasks)),
            engine=self._engine.name,
            engine_version=self._engine.engine_version,
            host=self._host,
            pid=os.getpid(),
            num_running=session.num_running,
            num_ended=self._num_ended,
            num_tokens=self._num_tokens,
            num_reloads=self._num_reloads,
            reload_seconds=self._reload_seconds,
            busy_seconds=self._busy_seconds,
            uptime_seconds=self._clock() - self._started_at,
            error=session.error,
            first_versions=session.first_versions,
            num_scoring=session.num_scoring,
            failures=dict(self._failures),
            phase=session.phase,
        )


def failure_name(sample: Sample) -> str:
    """What a failed sample counts as: its error's class; for a reward's error what the function did, and where.

    A message about a reward begins with that, before its first colon, and names the prompt or the value behind it.
    """
    if sample.error_class != RewardError.__name__:
        return sample.error_class or "unknown"
    return (sample.error_message or "").partition(":")[0][:_most_characters]
