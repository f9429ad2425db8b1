"""The whole loop with vLLM and DeepSpeed sharing one device, and where its time goes.

Each run is a `rollog up` of its own with a randomly initialised model and the settings of a configuration file; the
figures come from the run's log, between its first and its last commit, so that the start of the engines does not
count. The model learns nothing worth having; what is measured is speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from benchmarks.harness.demo_run import appended, prefix, run_up
from benchmarks.harness.figures import Figure
from benchmarks.harness.random_model import shapes, write_prompts, write_random_model
from benchmarks.harness.time_breakdown import generated, serving_delays, time_breakdown, trained
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import DataError
from schemas import LedgerRecord, Sample, Step, WeightVersion, WorkerStatus
from schemas.codec import decode, decode_as

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.harness.own_kafka import OwnKafka
    from benchmarks.harness.time_breakdown import TimeBreakdown
    from rollog.kernel.broker.ports import Broker

reward = "benchmarks.harness.random_model:share_of_even_words"
num_prompt_words = 64
_num_prompts = 4096
_least_steps = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every run does. `assignments` are further settings as `--set` takes them."""

    shape: str
    config: Path
    dtype: str
    max_context_tokens: int
    num_steps: int
    seed: int
    assignments: Sequence[str] = ()


def measure_accelerator(
    *,
    workload: Workload,
    alphas: Sequence[float],
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
) -> list[Figure]:
    """One run for each alpha.

    Raises:
        ChildFailed: a run ended with another exit status than 0.
        DataError: a run has too few steps to be measured.
    """
    common, num_parameters = _prepare(workload, kafka.home)
    figures = [Figure(name="accelerator.parameters", value=num_parameters / 1e6, unit="million")]
    for alpha in alphas:
        run = f"accelerator-{alpha:g}".replace(".", "-")
        further = [word for each in workload.assignments for word in ("--set", each)]
        words = ["--config", str(workload.config), *further]
        run_up(kafka, run, {**common, "freshness.alpha": f"{alpha:g}"}, words)
        found = figures_of_run(kafka.broker, RunTopics(prefix, run), f"accelerator.alpha_{alpha:g}")
        for figure in found:
            on_progress(figure.line())
        figures += found
    return figures


def figures_of_run(broker: Broker, topics: RunTopics, name: str) -> list[Figure]:
    """What the log of one run says. Raises DataError for a run of too few steps."""
    rollouts = [
        generated(decode_as(Sample, value), moment) for value, moment in appended(broker, topics.samples)
    ]
    ledger = [(decode_as(LedgerRecord, value), moment) for value, moment in appended(broker, topics.steps)]
    steps = [step for record, moment in ledger if (step := trained(record, moment)) is not None]
    if len(steps) < _least_steps:
        raise DataError(f"run {topics.run} has {len(steps)} steps; give at least {_least_steps} with --steps")
    notices = [(decode_as(WeightVersion, value), at) for value, at in appended(broker, topics.weights)]
    heartbeats = [(decode(value), at) for value, at in appended(broker, topics.workers)]
    delays = serving_delays(
        {notice.version: at for notice, at in notices if notice.version > 0},
        [
            (status.served_version, at)
            for status, at in heartbeats
            if isinstance(status, WorkerStatus) and status.served_version is not None
        ],
    )
    bodies = [record.body for record, _ in ledger if isinstance(record.body, Step)]
    return [
        *_speeds(time_breakdown(rollouts, steps), name),
        *_reloads(delays, name),
        *_mismatches(bodies, name),
    ]


def _speeds(times: TimeBreakdown, name: str) -> list[Figure]:
    return [
        Figure(
            name=f"{name}.step", value=times.seconds / times.num_steps, unit="s/step", higher_is_better=False
        ),
        Figure(
            name=f"{name}.generated",
            value=times.tokens_generated / times.generating_seconds,
            unit="tokens/s while rollouts ran",
        ),
        Figure(
            name=f"{name}.trained",
            value=times.tokens_trained / times.training_seconds,
            unit="response tokens/s while training",
        ),
        Figure(
            name=f"{name}.throughput",
            value=times.tokens_trained / times.seconds,
            unit="response tokens/s trained, of all time",
        ),
        *(
            Figure(name=f"{name}.{what}_share", value=seconds / times.seconds, unit="of all time")
            for what, seconds in (
                ("generating", times.generating_seconds),
                ("training", times.training_seconds),
            )
        ),
        Figure(
            name=f"{name}.neither_share",
            value=times.neither_seconds / times.seconds,
            unit="of all time",
            higher_is_better=False,
        ),
    ]


def _reloads(delays: Sequence[float], name: str) -> list[Figure]:
    if not delays:
        return []
    return [
        Figure(
            name=f"{name}.served_after_{what}",
            value=value,
            unit="s from the notice of a version to a worker serving it",
            higher_is_better=False,
            num_draws=len(delays),
        )
        for what, value in (("median", median(delays)), ("mean", fmean(delays)))
    ]


def _mismatches(steps: Sequence[Step], name: str) -> list[Figure]:
    """How far the log-probabilities of inference engine and trainer are apart at equal versions."""
    kinds = (
        ("mismatch_divergence", fmean, "nats per token, mean"),
        ("mismatch_log_ratio_max", max, "nats, largest"),
    )
    return [
        Figure(name=f"{name}.{kind}", value=summarize(values), unit=unit, higher_is_better=False)
        for kind, summarize, unit in kinds
        if (values := [step.statistics[kind] for step in steps if kind in step.statistics])
    ]


def _prepare(workload: Workload, home: Path) -> tuple[dict[str, object], int]:
    """Write model and prompts; returns the settings of every run, and the number of parameters."""
    model, prompts, shape = home / "model", home / "prompts.jsonl", shapes[workload.shape]
    model.mkdir()
    num_parameters = write_random_model(
        model,
        shape,
        dtype=workload.dtype,
        max_context_tokens=workload.max_context_tokens,
        seed=workload.seed,
    )
    write_prompts(prompts, shape, num_prompts=_num_prompts, num_words=num_prompt_words, seed=workload.seed)
    return {
        "model.path": model,
        "model.dtype": workload.dtype,
        "model.max_context_tokens": workload.max_context_tokens,
        "data.train": prompts,
        "reward.function": reward,
        "evaluation.every_steps": 0,
        "run.num_steps": workload.num_steps,
        "run.seed": workload.seed,
    }, num_parameters
