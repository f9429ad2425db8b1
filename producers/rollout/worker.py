"""The rollout worker: one asyncio loop around an engine.

Consumes   its granted partition of `tasks`; `control` and `weights` from their beginning.
Produces   `samples` and `evaluations`, exactly one record per rollout it was ordered; `workers` (heartbeats);
           `dead-letters` for tasks that cannot be decoded.
Waits for  a grant, a committed policy version, and tasks.
On crash   nothing is kept: its lease runs out, its open tasks are declared lost and issued again. A restarted
           process is a new worker. Samples that were acknowledged before the crash count.

Order of leaving: take nothing more, interrupt open rollouts, write their samples, tombstone, flush, commit, end the
engine, remove downloads. An engine that is still starting is interrupted.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from producers.rollout import actions
from producers.rollout.agents import AgentMaker
from producers.rollout.claim_check import ClaimCheck
from producers.rollout.committed import CommittedVersions
from producers.rollout.downloads import Downloads
from producers.rollout.engine_calls import EngineCalls
from producers.rollout.episode_metrics import EpisodeMetrics
from producers.rollout.episodes import EpisodeMaker
from producers.rollout.first_load import FirstLoad
from producers.rollout.heartbeats import Heartbeats
from producers.rollout.intake import RecordIntake
from producers.rollout.outcomes import Replica, replicas_of, unfinished_sample
from producers.rollout.pace import HeartbeatPace
from producers.rollout.publishing import RecordWriter
from producers.rollout.reader import LogReader
from producers.rollout.reloading import Reloader
from producers.rollout.reporting import WorkerReport
from producers.rollout.rollouts import ResponseMaker
from producers.rollout.scoring import Response, ResponseScorer
from producers.rollout.sender import SampleSender
from producers.rollout.session import WorkerSession
from producers.rollout.turn_log import DurableTurns
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import EngineError, EngineNotStarted, WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.versions.shared_copy import SharedCopy
from schemas import Timings

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Coroutine, Iterable

    from producers.engines.ports import Engine
    from producers.rewards.ports import Rewards
    from producers.rollout.agents import Agents
    from producers.rollout.episodes import Episodes
    from producers.rollout.prompts import PromptRenderer
    from producers.rollout.rollouts import RolloutMaker
    from producers.rollout.settings import RolloutSettings
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.metrics import Metrics
    from rollog.kernel.weights import WeightsStore
    from schemas import RolloutTask, Sample

_log = get_logger("rollout")
_tick_seconds = 0.05
_gather_seconds = 0.03
_commit_seconds = 1.0
_leave_seconds = 15.0
_flush_seconds = 10.0
_suspended_seconds = 2.0
"""A tick that comes so much too late tells of a time in which no rollout could go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What a worker is made of, besides its own loop.

    `training_rewards` is `evaluation_rewards` or wraps it: starting and closing it does so for both.
    """

    broker: Broker
    engine: Engine
    renderer: PromptRenderer
    training_rewards: Rewards
    evaluation_rewards: Rewards
    store: WeightsStore
    metrics: Metrics
    episodes: Episodes | None = None
    """What is played in place of single responses."""
    agents: Agents | None = None
    """Who asks the policy in place of single responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConnections:
    """What a worker reads and writes with, each on a thread of its own."""

    reader: LogReader
    sender: SampleSender
    heartbeats: Heartbeats
    committed: CommittedVersions


@asynccontextmanager
async def open_worker(
    settings: RolloutSettings, parts: WorkerParts, *, worker_id: str, stop: threading.Event
) -> AsyncIterator[RolloutWorker]:
    """A worker that is connected to the broker. At the end everything it is made of is closed.

    Closed are, in this order, agents or environments, rewards, engine, downloads, what asks the ledger for versions,
    heartbeats, sender and reader, each whatever becomes of the others.
    """
    topics = RunTopics(settings.prefix, settings.run)
    # A server that somebody else started reads below the directories that its environment names.
    shared = None if settings.rollout.engine == "remote" else settings.shared
    copy = None if shared is None else SharedCopy(shared)
    downloads = Downloads(parts.store, settings.home / "downloads" / worker_id, copy)
    max_bytes = settings.rollout.max_in_flight_bytes
    async with AsyncExitStack() as connections, AsyncExitStack() as closing:
        for close in (downloads.close, parts.engine.close, parts.training_rewards.close):
            closing.push_async_callback(close)
        if parts.episodes is not None:
            closing.push_async_callback(parts.episodes.pool.close)
        if parts.agents is not None:
            closing.push_async_callback(parts.agents.close)
        reader = await LogReader.open(parts.broker, topics, worker_id)
        connections.push_async_callback(reader.close)
        sender = await SampleSender.open(parts.broker, worker_id, max_in_flight_bytes=max_bytes)
        connections.push_async_callback(sender.close)
        heartbeats = await Heartbeats.open(
            parts.broker, worker_id, every_seconds=settings.rollout.heartbeat_seconds
        )
        connections.push_async_callback(heartbeats.close)
        committed = CommittedVersions(parts.broker, topics)
        connections.push_async_callback(committed.close)
        worker = RolloutWorker(
            settings,
            parts,
            connections=WorkerConnections(
                reader=reader, sender=sender, heartbeats=heartbeats, committed=committed
            ),
            downloads=downloads,
            worker_id=worker_id,
            stop=stop,
        )
        connections.push_async_callback(worker.close)
        yield worker


class RolloutWorker:
    """One worker incarnation, made by `open_worker`. Its rules are in the session, its effects here.

    | state    | what it does                                                     | until                             |
    | ---      | ---                                                              | ---                               |
    | catch-up | reads control and weights to their ends; nobody knows of it      | both are read                     |
    | working  | starts the engine; heartbeats, tasks, rollouts, samples, reloads | run closed, Stop, `stop`, error   |
    | leaving  | ends rollouts as cancelled, writes samples and a tombstone       | all is acknowledged, or a time-out |
    """

    def __init__(
        self,
        settings: RolloutSettings,
        parts: WorkerParts,
        *,
        connections: WorkerConnections,
        downloads: Downloads,
        worker_id: str,
        stop: threading.Event,
    ) -> None:
        config = settings.rollout
        topics = RunTopics(settings.prefix, settings.run)
        self._settings = settings
        self._parts = parts
        self._stop = stop
        self._reader, self._sender = connections.reader, connections.sender
        self._heartbeats = connections.heartbeats
        self._is_ledger_closed = connections.committed.is_closed
        self._session = _session(
            settings, worker_id, has_turns=parts.episodes is not None or parts.agents is not None
        )
        self._report = WorkerReport(
            self._session, parts.engine, parts.metrics, capacity=config.capacity, reload=config.reload
        )
        self._calls = EngineCalls(self._session, parts.engine, on_resumed=self._report.resumed)
        episodes = parts.episodes
        self._episode_metrics = (
            None if episodes is None else EpisodeMetrics(episodes.pool.counts, parts.metrics)
        )
        self._scorer = ResponseScorer(
            self._session,
            training_rewards=parts.training_rewards,
            evaluation_rewards=parts.evaluation_rewards,
            has_late_rewards=settings.reward.late,
        )
        self._reloader = self._made_reloader(connections.committed, downloads)
        self._writer = RecordWriter(topics, max_record_bytes=settings.broker.max_record_bytes)
        self._claim_check = ClaimCheck(PayloadStore(parts.store, topics), settings.broker)
        self._turns = self._kept_turns(topics) if settings.durable_turns else None
        self._maker = _maker(
            worker_id, self._calls, parts, capacity=config.capacity, sender=self._sender, turns=self._turns
        )
        self._intake = RecordIntake(
            settings,
            topics,
            self._session,
            report=self._report,
            writer=self._writer,
            sender=self._sender,
            act=self._act,
            publish=self._publish,
        )
        self._pace = HeartbeatPace(every_seconds=config.heartbeat_seconds, capacity=config.capacity)
        self._group = asyncio.TaskGroup()
        self._assignment: actions.ReadTasks | actions.StopReading | None = None
        self._leave: actions.Leave | None = None
        self._leaves = asyncio.Event()
        self._spawned: set[asyncio.Task[None]] = set()
        self._rollouts: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until the run is closed or `stop` is set; to be called once.

        Raises WeightsError when weights could not be loaded again and again, EngineDied, BrokerError, DataError.
        """
        await self._catch_up()
        if self._leave is None:
            await self._work()
        if self._leave is not None and self._leave.error is not None:
            raise WeightsError(self._leave.error)

    def _made_reloader(self, committed: CommittedVersions, downloads: Downloads) -> Reloader:
        config = self._settings.rollout
        return Reloader(
            engine=self._parts.engine,
            session=self._session,
            report=self._report,
            calls=self._calls,
            downloads=downloads,
            reload=config.reload,
            retry_seconds=config.heartbeat_seconds,
            act=self._act,
            beat=self._beat,
            is_foreign=committed.is_foreign,
            first_load=FirstLoad(self._parts.engine, config.first_load_tolerance),
        )

    def _kept_turns(self, topics: RunTopics) -> DurableTurns:
        return DurableTurns(
            self._parts.broker,
            topics,
            self._session,
            sender=self._sender,
            writer=self._writer,
            metrics=self._parts.metrics,
            max_sample_bytes=self._settings.broker.max_payload_bytes,
        )

    async def close(self) -> None:
        """Close what it has opened itself."""
        if self._turns is not None:
            await self._turns.close()

    async def _catch_up(self) -> None:
        """Read control and weights to their ends, before the first heartbeat.

        The first heartbeat brings a grant; by then the worker knows the newest epoch, and whether the run is closed.
        """
        ends = await self._reader.end_of_log()
        while self._leave is None and not await self._reader.has_read(ends):
            self._intake.take(await self._reader.poll())
            await self._leave_if_closed()
            self._leave_if_stopped()

    async def _work(self) -> None:
        async with self._group as group:
            background = [
                group.create_task(_for_ever(self._sender.run()), name="sender"),
                group.create_task(_for_ever(self._heartbeats.run()), name="heartbeats"),
                group.create_task(_for_ever(self._read()), name="reader"),
            ]
            tick = group.create_task(_for_ever(self._tick()), name="tick")
            self._beat()
            self._spawn(self._prepare(), "engine start")
            await self._leaves.wait()
            await self._finish(tick)
            # The group waits for all its tasks, and these would never end: an engine start, say, or a retried load.
            for task in (*background, *self._spawned):
                task.cancel()

    async def _prepare(self) -> None:
        parts = self._parts
        await self._start_engine()
        await parts.training_rewards.start()
        if parts.episodes is not None:
            await parts.episodes.pool.check(parts.episodes.settings.environment)
        if parts.agents is not None:
            await parts.agents.start()
        _log.info("engine ready", engine=parts.engine.name, version=parts.engine.engine_version)
        self._act(self._session.engine_ready())

    async def _start_engine(self) -> None:
        engine, path = self._parts.engine, self._settings.model.path
        try:
            await engine.start()
        except EngineError as error:
            if engine.name == "remote":
                raise EngineNotStarted(str(error)) from error
            raise EngineNotStarted(
                f"{engine.name} {engine.engine_version} could not start with model.path = {path!r} on this device: "
                f"{error}; the lines above say why. Check the model, rollout.kv_cache_bytes and rollout.engine_args, "
                'or set rollout.engine = "transformers"'
            ) from error

    async def _read(self) -> None:
        committed_at = time.monotonic()
        while True:
            self._intake.take(await self._reader.poll())
            await self._leave_if_closed()
            await self._apply_assignment()
            # Taking in many small batches costs more than their tasks.
            await asyncio.sleep(_gather_seconds)
            if time.monotonic() - committed_at > _commit_seconds:
                committed_at = time.monotonic()
                await self._reader.commit(self._session.tasks_position)

    async def _apply_assignment(self) -> None:
        # Between two polls, because only the task that polls may change what the consumer reads.
        assignment, self._assignment = self._assignment, None
        match assignment:
            case actions.ReadTasks(partition=partition, start_offset=start_offset):
                await self._reader.read_tasks(partition, start_offset)
                self._beat()
            case actions.StopReading():
                await self._reader.stop_reading_tasks()
                self._beat()

    async def _tick(self) -> None:
        last_tick_at = time.monotonic()
        while True:
            await asyncio.sleep(_tick_seconds)
            now = time.monotonic()
            if now - last_tick_at > _suspended_seconds:
                _log.warning("was suspended, or had no processor", seconds=now - last_tick_at)
                self._session.was_suspended(now - last_tick_at)
            last_tick_at = now
            self._report.observe()
            if self._episode_metrics is not None:
                self._episode_metrics.observe()
            self._leave_if_stopped()
            if self._pace.is_due(now, self._session.num_scoring):
                self._act(self._session.end_overdue())
                self._beat()

    def _leave_if_stopped(self) -> None:
        if self._stop.is_set():
            self._act(self._session.leave("the worker was stopped"))

    async def _leave_if_closed(self) -> None:
        """Heed `RunClosed` where the ledger says the same: anybody may be able to write to control."""
        said, self._intake.said_closed = self._intake.said_closed, None
        if said is None or self._session.is_leaving:
            return
        if await self._is_ledger_closed():
            self._act(self._session.on_control(said))
        else:
            _log.warning("RunClosed ignored: the ledger is open", epoch=said.epoch)

    def _beat(self) -> None:
        # A task counts as open until its sample is acknowledged, or the dispatcher would declare it lost before.
        open_tasks = [*self._session.open_task_ids, *self._sender.unacknowledged_task_ids]
        self._heartbeats.put(self._writer.heartbeat(self._report.status(open_tasks)))
        self._pace.told(time.monotonic(), self._session.num_scoring)

    def _act(self, wanted: Iterable[actions.Action]) -> None:
        for action in wanted:
            self._act_once(action)

    def _act_once(self, action: actions.Action) -> None:
        match action:
            case actions.Start(task=task):
                for replica in replicas_of(task):
                    rollout = self._spawn(self._roll_out(replica), f"rollout {replica.request_id}")
                    self._rollouts.add(rollout)
                    rollout.add_done_callback(self._rollouts.discard)
            case actions.End(task=task, ending=ending):
                self._end(task, ending)
            case actions.Interrupt(task_id=task_id):
                for request_id in self._session.request_ids_of(task_id):
                    self._scorer.interrupt(request_id)
                    self._spawn(self._maker.interrupt(request_id), f"interrupt {request_id}")
            case actions.Load(notice=notice):
                self._spawn(self._reloader.fetch(notice), f"fetch version {notice.version}")
            case actions.Swap() as swap:
                self._spawn(self._reloader.swap(swap), f"load version {swap.notice.version}")
            case actions.ReadTasks() | actions.StopReading():
                self._assignment = action
            case actions.Leave():
                _log.info("leaving", reason=action.reason, error=action.error)
                self._leave = action
                self._leaves.set()

    def _end(self, task: RolloutTask, ending: actions.Ending) -> None:
        for replica in replicas_of(task):
            sample = unfinished_sample(replica, self._session.worker_id, ending, timings=Timings())
            self._publish(sample, task.sample_partition)

    async def _roll_out(self, replica: Replica) -> None:
        generated = await self._maker.generate(replica)
        if isinstance(generated, Response):
            # The engine has done its part: its slot goes to the next task while this one is scored.
            self._generated(replica)
            await self._send(replica, await self._scorer.score(generated))
        else:
            await self._send(replica, generated)
            self._generated(replica)
        self._act(self._session.replica_ended(replica.task.task_id))

    def _generated(self, replica: Replica) -> None:
        self._report.slot_freed()
        self._act(self._session.replica_generated(replica.task.task_id))

    async def _send(self, replica: Replica, sample: Sample) -> None:
        sample = await self._claim_check.checked(sample)
        self._publish(sample, replica.task.sample_partition)
        # Slot or scoring place stays taken while too much is unacknowledged: no queue grows while the broker is away.
        await self._sender.wait_for_room()

    def _publish(self, sample: Sample, partition: int) -> None:
        outgoing, written = self._writer.sample(sample, partition)
        self._report.ended(written)
        self._sender.add(outgoing)

    async def _finish(self, tick: asyncio.Task[None]) -> None:
        self._beat()  # with state LEAVING: no further task is issued to this worker
        if self._rollouts:
            await asyncio.wait(self._rollouts, timeout=_leave_seconds)
        tick.cancel()  # no heartbeat may land behind the tombstone
        try:
            # The samples first: what is open when the tombstone is read is lost.
            await self._sender.flush(_flush_seconds)
            await self._heartbeats.leave(self._writer.tombstone(self._session.worker_id), _flush_seconds)
        except TimeoutError:
            _log.warning("left without acknowledgement", open_tasks=len(self._sender.unacknowledged_task_ids))
        await self._reader.commit(self._session.tasks_position)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._group.create_task(work, name=name)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task


def _maker(
    worker_id: str,
    calls: EngineCalls,
    parts: WorkerParts,
    *,
    capacity: int,
    sender: SampleSender,
    turns: DurableTurns | None,
) -> RolloutMaker:
    if parts.agents is not None:
        return AgentMaker(
            worker_id,
            calls,
            parts.renderer,
            parts.agents,
            metrics=parts.metrics,
            max_calls=capacity,
            wait_for_room=sender.wait_for_room,
            turns=turns,
        )
    if parts.episodes is None:
        return ResponseMaker(worker_id, calls, parts.renderer)
    return EpisodeMaker(worker_id, calls, parts.renderer, parts.episodes, metrics=parts.metrics, turns=turns)


def _session(settings: RolloutSettings, worker_id: str, *, has_turns: bool) -> WorkerSession:
    config = settings.rollout
    # Calls are drained, not whole rollouts (`Reloader.swap`): between two calls one has nothing in the engine.
    keeps = config.reload == "drain" and has_turns
    return WorkerSession(
        worker_id,
        capacity=config.capacity,
        load_attempts=config.load_attempts,
        reward_function=settings.reward.identity or "",
        clock=time.monotonic,
        reload="keep" if keeps else config.reload,
        max_resumes=config.max_resumes,
        num_task_partitions=settings.broker.max_workers,
        max_scoring=settings.reward.max_in_flight,
    )


async def _for_ever(work: Coroutine[Any, Any, None]) -> None:
    """Raise AssertionError when background work ends: a worker that stopped reading would look alive."""
    await work
    raise AssertionError("a background task of the rollout worker ended")
