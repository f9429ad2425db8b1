"""What a task costs the dispatcher on a broker in memory and on Apache Kafka, and what 256 workers get through it.

In memory the dispatcher's turns alone are timed, by the processor time of their thread: what is left is decisions and
records. On Kafka the time is that of the dispatcher's process, its client library's threads included. The workers are
`benchmarks.scaling.answering_workers`: heartbeats, grants, tasks and samples as the protocol has them, no engine.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.dispatcher.loads import (
    Cost,
    Load,
    busy_slots_figures,
    cost_figures,
    fleet,
    fleet_figures,
    loads,
    task_seconds,
)
from benchmarks.harness.figures import mean_figure
from benchmarks.harness.own_kafka import own_kafka
from benchmarks.harness.simulated_run import SimulatedRun, worker_name
from benchmarks.harness.variant import Job
from benchmarks.scaling.answering_workers import Answer, AnsweringWorkers, at_once
from benchmarks.scaling.role_process import Role
from benchmarks.scaling.role_processes import RoleProcesses
from producers.dispatcher.dispatcher import pause_seconds
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.errors import BrokerTimeout
from schemas import FinishReason, Kind, Sample, Segment, Status, float32_array, int32_array, uint8_array
from schemas.codec import decode_as, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness.figures import Figure
    from benchmarks.harness.own_kafka import OwnKafka

_settling_seconds = 3.0
_fleet_settling_seconds = 6.0
_evaluation_tokens = 1000

fleet_answer = Answer(num_tokens=1000, seconds=task_seconds, in_slots=True)
"""What a worker of the fleet does with a task."""


def measure_dispatcher_costs(
    *,
    num_seeds: int,
    seed: int,
    client: str,
    only: str | None,
    seconds: float,
    home: Path,
    on_progress: Callable[[str], None],
) -> list[Figure]:
    """All figures. Raises ChildFailed when a process ends by itself, ConfigError for a client that is not there."""
    seeds = range(seed, seed + num_seeds)
    figures: list[Figure] = []
    if only in {None, "memory"}:
        figures += _in_memory(seeds, seconds, on_progress)
    if only in {None, "kafka", "fleet"}:
        with own_kafka(home) as kafka:
            if only != "fleet":
                figures += _on_kafka(seeds, kafka, client, seconds, on_progress)
            if only != "kafka":
                figures += _of_fleet(seeds, kafka, client, seconds, on_progress)
    return figures


def _in_memory(seeds: range, seconds: float, on_progress: Callable[[str], None]) -> list[Figure]:
    costs: dict[str, list[Cost]] = {load.name: [] for load in (*loads, fleet)}
    for seed in seeds:
        for load in (*loads, fleet):
            answer = fleet_answer if load is fleet else at_once
            costs[load.name].append(measure_in_memory(load, seed, seconds, answer=answer))
            on_progress(f"memory {load.name} seed {seed}: {costs[load.name][-1].cpu_ms:.3f} ms")
    reading = mean_figure(
        "dispatcher.memory.evaluation.read_ms",
        f"ms of processor for reading one evaluation of {_evaluation_tokens} tokens, as a dispatcher does",
        [evaluation_reading_ms(_evaluation_tokens) for _ in seeds],
        higher_is_better=False,
    )
    return [*cost_figures("memory", costs), *busy_slots_figures(costs[fleet.name]), reading]


def evaluation_reading_ms(num_tokens: int, *, num_reads: int = 2000) -> float:
    """Processor milliseconds of decoding and checking a finished evaluation."""
    value = encode(
        Sample(
            sample_id="greedy.v0.p0",
            task_id="1.1",
            kind=Kind.EVALUATION,
            status=Status.FINISHED,
            epoch=1,
            grant_id="1.1",
            worker_id="worker-1",
            group_id=0,
            replica=0,
            attempt=0,
            prompt_id="p",
            token_ids=int32_array([7] * num_tokens),
            behaviour_logprobs=float32_array([-0.5] * num_tokens),
            loss_mask=uint8_array([1] * num_tokens),
            segments=(Segment(version=0, weights_digest="0" * 16, start=0, end=num_tokens),),
            response_text="text " * num_tokens,
            reward=1.0,
            finish_reason=FinishReason.STOP,
            pinned_version=0,
            evaluation="greedy",
        )
    )
    began = time.thread_time()
    for _ in range(num_reads):
        decode_as(Sample, value)
    return 1000 * (time.thread_time() - began) / num_reads


def _on_kafka(
    seeds: range, kafka: OwnKafka, client: str, seconds: float, on_progress: Callable[[str], None]
) -> list[Figure]:
    at_their_pace = [load for load in loads if load.tasks_per_second is None]
    costs: dict[str, list[Cost]] = {load.name: [] for load in at_their_pace}
    for seed in seeds:
        for load in at_their_pace:
            cost = measure_on_kafka(load, seed, kafka, client=client, answer=at_once, seconds=seconds)
            costs[load.name].append(cost)
            on_progress(
                f"kafka {load.name} seed {seed}: {cost.cpu_ms:.3f} ms at {cost.throughput:.0f} tasks/s"
            )
    return cost_figures(f"kafka{f'_{client}' if client else ''}", costs)


def _of_fleet(
    seeds: range, kafka: OwnKafka, client: str, seconds: float, on_progress: Callable[[str], None]
) -> list[Figure]:
    num_cores = len(os.sched_getaffinity(0))
    costs = []
    for seed in seeds:
        cost = measure_on_kafka(fleet, seed, kafka, client=client, answer=fleet_answer, seconds=seconds)
        costs.append(cost)
        on_progress(
            f"fleet seed {seed}: {cost.throughput:.0f} of {cost.ideal(num_cores):.0f} tasks/s, {cost.cpu_ms:.3f} ms"
        )
    return fleet_figures(costs, num_cores)


def measure_in_memory(
    load: Load, seed: int, seconds: float, *, answer: Answer = at_once, settling: float = _settling_seconds
) -> Cost:
    """Let a dispatcher make turns at its own pace while tasks are answered at that of the load.

    Time is counted, not waited for: a turn takes its pause, or its processor time where that is more. So what else the
    machine does changes little.
    """
    clock = _CountedTime()
    with tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory:
        broker = MemoryBroker()
        job = Job(variant=load.variant(), seed=seed, number=0, speed=1.0)
        run = SimulatedRun(job, broker, Path(directory))
        run.create()
        run.begin()
        workers = _workers(run, load, broker, answer, clock)
        with (
            replace(run.take_over("dispatcher"), clock=clock).start() as dispatcher,
            broker.consumer(client_id="answers") as consumer,
            broker.producer(client_id="answers") as producer,
        ):
            workers.begin(consumer)
            pause = pause_seconds(load.num_workers)
            per_turn = None if load.tasks_per_second is None else round(load.tasks_per_second * pause)
            num_tasks, cpu_seconds, began, empty_seconds = 0, 0.0, seconds + settling, 0.0
            while clock() < settling + seconds:
                answered = workers.turn(consumer, producer, poll_seconds=0.0, most_answers=per_turn)
                before, is_settled = time.thread_time(), clock() >= settling
                if is_settled and clock() < began:
                    began, empty_seconds = clock(), workers.empty_slot_seconds()
                dispatcher.run_once()
                spent = time.thread_time() - before
                if is_settled:
                    cpu_seconds += spent
                    num_tasks += answered
                clock.now += max(pause, spent)
            empty_seconds = workers.empty_slot_seconds() - empty_seconds
    return Cost(
        num_tasks=_some(num_tasks, load),
        seconds=clock() - began,
        cpu_seconds=cpu_seconds,
        empty_slot_seconds=empty_seconds,
    )


@dataclass(slots=True)
class _CountedTime:
    """A clock that is set by hand, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def _workers(
    run: SimulatedRun, load: Load, broker: MemoryBroker, answer: Answer, clock: Callable[[], float]
) -> AnsweringWorkers:
    return AnsweringWorkers(
        broker,
        run.topics,
        [worker_name(number) for number in range(load.num_workers)],
        capacity=load.slots_per_worker,
        max_record_bytes=run.sections.broker.max_record_bytes,
        answer=answer,
        clock=clock,
    )


def measure_on_kafka(
    load: Load, seed: int, kafka: OwnKafka, *, client: str, answer: Answer, seconds: float
) -> Cost:
    """Let every task be answered for a while by workers in one process, with the dispatcher in another."""
    job = Job(variant=load.variant(), seed=seed, number=0, speed=1.0)
    with RoleProcesses(job, kafka.address, kafka.home / secrets.token_hex(4), client) as processes:
        answers = processes.start(Role.ANSWERS, answer=answer)
        dispatcher = processes.start(Role.DISPATCHER)
        processes.run.wait_for_workers()
        processes.run.begin()
        time.sleep(_fleet_settling_seconds if answer.in_slots else _settling_seconds)
        before = dispatcher.status().cpu_seconds
        of_others = answers.status().cpu_seconds + _cpu_seconds(kafka.pid)
        began = time.time()
        time.sleep(seconds)
        ended = time.time()
        cpu_seconds = dispatcher.status().cpu_seconds - before
        of_others = answers.status().cpu_seconds + _cpu_seconds(kafka.pid) - of_others
        processes.check()
        times = [record.timestamp_ms for record in processes.run.samples()]
    return Cost(
        num_tasks=_some(sum(began * 1000 <= each < ended * 1000 for each in times), load),
        seconds=ended - began,
        cpu_seconds=cpu_seconds,
        total_cpu_seconds=cpu_seconds + of_others,
    )


def _some(num_tasks: int, load: Load) -> int:
    if not num_tasks:
        raise BrokerTimeout(f"dispatcher.{load.name}: no task was answered in the time; free the machine")
    return num_tasks


def _cpu_seconds(pid: int | None) -> float:
    """Processor seconds of a process so far, user and system."""
    if pid is None:
        return 0.0
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
