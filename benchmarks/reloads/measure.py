"""Runs with fetches of several lengths, on one embedded Apache Kafka, and what they cost."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, mean_figure, ratio_figure
from benchmarks.harness.simulated_run import SimulatedRun
from benchmarks.harness.variant import Job
from benchmarks.harness.worker_processes import outcomes, told_results
from benchmarks.harness.workload import tokens_per_second
from benchmarks.reloads.variants import Case, cases, has_target_from_alpha, least_busy, num_steps
from schemas import Disposition, LedgerKind, LedgerRecord, Sample
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.harness.own_kafka import OwnKafka
    from benchmarks.harness.variant import Variant
    from rollog.kernel.broker.ports import Broker, Record

_settling_steps = 3
"""Steps at the beginning that are not measured: the slots fill, and nothing is stale yet."""
_ending_steps = 4
"""Steps at the end that are not measured: fewer groups are needed than alpha allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadResult:
    """What one run took: engine seconds of a step, share of the slots' time in which tokens are made, verdicts."""

    seconds: float
    busy_share: float
    num_stale: int
    num_trained: int


Outcomes = Mapping[str, Mapping[int, ReloadResult]]
"""By name of the variant and number of the workload."""


def measure_reloads(
    *,
    num_seeds: int,
    seed: int,
    speed: float,
    num_processes: int,
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
    steps: int = num_steps,
) -> tuple[list[Figure], int]:
    """All figures, and how many runs failed. Raises ChildFailed."""
    # The runs of a workload follow one another, so that they share their surroundings.
    jobs = [
        Job(variant=case.variant(steps=steps), seed=seed, number=number, speed=speed)
        for number in range(num_seeds)
        for case in cases
    ]
    on_progress(f"{len(jobs)} runs in {num_processes} processes, time {speed:g} times as fast")
    found: dict[str, dict[int, ReloadResult]] = defaultdict(dict)
    warm_up = Job(variant=cases[0].variant(steps=steps), seed=seed, number=num_seeds, speed=4 * speed)
    ended = outcomes(jobs, warm_up, num_processes=num_processes, set_up=kafka.runs(measure_run))
    for job, result in told_results(ended, len(jobs), draw="workload", text=_text, on_progress=on_progress):
        found[job.variant.name][job.number] = result
    return figures_of(found), len(jobs) - sum(map(len, found.values()))


def measure_run(job: Job, broker: Broker, home: Path) -> ReloadResult:
    """Make one run, and say what it took. Raises whatever ended a role, or BrokerTimeout."""
    run = SimulatedRun(job, broker, home / secrets.token_hex(4))
    try:
        run.create()
        with run.roles():
            run.wait_until_closed(job.variant.num_steps * job.variant.longest_seconds * 2)
        return result_of(run.ledger(), run.samples(), job)
    finally:
        run.remove()


def result_of(
    ledger: Sequence[tuple[int, LedgerRecord]], samples: Sequence[Record], job: Job
) -> ReloadResult:
    """What a run took that wrote these records, each record of the ledger with its append time in milliseconds."""
    stepped = [timestamp / 1000 for timestamp, found in ledger if found.kind is LedgerKind.STEP]
    measured = stepped[_settling_steps : len(stepped) - _ending_steps]
    begin, end = measured[0], measured[-1]
    verdicts = [verdict.disposition for _, found in ledger for verdict in found.verdicts]
    filled = sum(_seconds_within(record, job, begin, end) for record in samples)
    return ReloadResult(
        seconds=(end - begin) / (len(measured) - 1) * job.speed,
        busy_share=filled / (job.variant.num_workers * job.variant.slots_per_worker * (end - begin)),
        num_stale=verdicts.count(Disposition.STALE),
        num_trained=verdicts.count(Disposition.TRAINED),
    )


def _seconds_within(record: Record, job: Job, begin: float, end: float) -> float:
    """Real seconds between both moments in which a slot made the tokens of this sample, whatever became of it."""
    sample = decode(record.value or b"")
    if not isinstance(sample, Sample):
        return 0.0
    ended = record.timestamp_ms / 1000
    began = ended - (sample.num_sampled_tokens + sample.wasted_tokens) / tokens_per_second / job.speed
    return max(0.0, min(ended, end) - max(began, begin))


def figures_of(found: Outcomes) -> list[Figure]:
    """Per case: slots and steps against reloads that take no time, and what was stale."""
    return [figure for case in cases for figure in _figures(case, found)]


def _figures(case: Case, found: Outcomes) -> list[Figure]:
    name, mode, base = case.name, found.get(case.name, {}), found.get(case.baseline.name, {})
    results = list(mode.values())
    if not results:
        return []
    figures = [
        mean_figure(
            f"{name}.busy_slots",
            "share of the slots' time in which tokens are made",
            [each.busy_share for each in results],
        ),
        mean_figure(
            f"{name}.stale",
            "stale samples for each trained one",
            [each.num_stale / each.num_trained for each in results],
            higher_is_better=False,
        ),
    ]
    pairs = [(mode[number], base[number]) for number in sorted(mode.keys() & base.keys())]
    if case == case.baseline or not pairs:
        return figures
    has_target = case.alpha >= has_target_from_alpha and not case.stands_still
    return [
        ratio_figure(
            f"{name}.busy_slots_kept",
            "busy share of the slots / with reloads that take no time",
            [(one.busy_share, other.busy_share) for one, other in pairs],
            target=least_busy if has_target else None,
            ideal=1.0,
        ),
        ratio_figure(
            f"{name}.step_time",
            "time of a step / with reloads that take no time",
            [(one.seconds, other.seconds) for one, other in pairs],
            ideal=1.0,
            higher_is_better=False,
        ),
        *figures,
    ]


def _text(variant: Variant, found: ReloadResult) -> str:
    del variant
    stale = found.num_stale / found.num_trained
    return (
        f"{found.seconds:.1f} s a step, slots {found.busy_share:.3f} busy, {stale:.3f} stale for each trained"
    )
