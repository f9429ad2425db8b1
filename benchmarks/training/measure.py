"""How fast the trainer's engine is, against a bare PyTorch loop over the same batches.

For each model, in turns and on the same batches: a step of the DeepSpeed engine, the same step of the bare loop
(`bare_loop.py`), and the step with packing, whose batch is planned for that. The ratio of the first two is what the
engine costs: plans, statistics, checks, determinism, DeepSpeed. Nothing else of the trainer is in it: no broker, no
export, no commit.

The ratio is taken of CPU seconds of this process, which what else runs on a machine hardly changes; the same of elapsed
seconds stands beside it.
"""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from benchmarks.harness.figures import Figure, ratio_figure
from benchmarks.training.bare_loop import BareLoop
from benchmarks.training.workloads import a_batch, plan_of
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.model.policy import load_model
from trainer.step.planning import padding_share
from trainer.step.ports import StepSettings, TrainingBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.training.workloads import Workload

least_ratio = 0.85
_temperature = 1.0
_unit = "trained tokens per CPU second"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seconds:
    """What one step took."""

    cpu: float
    elapsed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What one step of each took, and what the batch was."""

    engine: _Seconds
    bare: _Seconds
    packed: _Seconds
    num_tokens: int
    padding: float
    packed_padding: float


def measure_training(
    workloads: Sequence[Workload],
    *,
    num_rounds: int,
    num_threads: int,
    seed: int,
    on_progress: Callable[[str], None],
) -> list[Figure]:
    """Tokens per second of engine, bare loop and packed engine, and the shares of padding, for every workload."""
    figures = []
    for workload in workloads:
        rounds = _measure(workload, num_rounds, num_threads, seed, on_progress)
        figures += _figures(workload.name, rounds)
    return figures


def _measure(
    workload: Workload, num_rounds: int, num_threads: int, seed: int, on_progress: Callable[[str], None]
) -> list[_Round]:
    settings = StepSettings(
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(learning_rate=1e-5),
        num_optimizer_steps=(num_rounds + 1) * workload.num_minibatches,
    )
    rounds = []
    with ExitStack() as open_parts:
        padded, packed = (
            open_parts.enter_context(closing(_engine(workload, settings, num_threads, packing=packing)))
            for packing in (False, True)
        )
        bare = BareLoop(load_model(workload.model_path, None, "float32"), settings, _temperature)
        for number in range(num_rounds + 1):
            batch = a_batch(workload, number=number, seed=seed)
            found = _round(workload, batch, (padded, bare, packed), number=number, seed=seed)
            if number == 0:
                continue  # the first step of each allocates
            rounds.append(found)
            on_progress(
                f"{workload.name} {number}/{num_rounds}: CPU seconds of the engine {found.engine.cpu:.3f}, "
                f"bare loop {found.bare.cpu:.3f}, packed {found.packed.cpu:.3f}"
            )
    return rounds


def _round(
    workload: Workload,
    batch: TrainingBatch,
    trained_by: tuple[DeepSpeedEngine, BareLoop, DeepSpeedEngine],
    *,
    number: int,
    seed: int,
) -> _Round:
    padded, bare, packed = trained_by
    lengths = [sample.num_tokens for sample in batch.samples]
    plan = plan_of(workload, batch.samples, number=number, seed=seed, packing=True)
    packed_batch = TrainingBatch(samples=batch.samples, plan=plan)
    works: list[tuple[str, Callable[[], object], bool]] = [
        ("engine", lambda: padded.train_step(batch), True),
        ("bare", lambda: bare.train_step(batch), False),
        ("packed", lambda: packed.train_step(packed_batch), True),
    ]
    first = number % len(works)
    seconds = {}
    for name, work, is_deterministic in works[first:] + works[:first]:
        torch.use_deterministic_algorithms(is_deterministic)
        seconds[name] = _seconds(work)
    return _Round(
        **seconds,
        num_tokens=sum(len(sample.token_ids) for sample in batch.samples),
        padding=padding_share(batch.plan, lengths),
        packed_padding=padding_share(plan, lengths, packing=True),
    )


def _engine(
    workload: Workload, settings: StepSettings, num_threads: int, *, packing: bool
) -> DeepSpeedEngine:
    engine = DeepSpeedEngine(
        settings=settings,
        trainer=TrainerConfig(
            num_minibatches=workload.num_minibatches, num_threads=num_threads, packing=packing
        ),
        temperature=_temperature,
        dtype="float32",
    )
    engine.start(workload.model_path)
    return engine


def _seconds(work: Callable[[], object]) -> _Seconds:
    gc.collect()
    elapsed, cpu = time.perf_counter(), time.process_time()
    work()
    return _Seconds(cpu=time.process_time() - cpu, elapsed=time.perf_counter() - elapsed)


def _figures(name: str, rounds: Sequence[_Round]) -> list[Figure]:
    num_tokens = sum(each.num_tokens for each in rounds)
    engine, bare, packed = (
        num_tokens / sum(getattr(each, which).cpu for each in rounds)
        for which in ("engine", "bare", "packed")
    )
    return [
        _ratio(
            f"{name}.ratio",
            "tokens per CPU second, engine / bare loop",
            [(each.bare.cpu, each.engine.cpu) for each in rounds],
            target=least_ratio,
        ),
        _ratio(
            f"{name}.elapsed_ratio",
            "tokens per elapsed second, engine / bare loop",
            [(each.bare.elapsed, each.engine.elapsed) for each in rounds],
        ),
        _ratio(
            f"{name}.packing",
            "tokens per CPU second, packed / padded",
            [(each.engine.cpu, each.packed.cpu) for each in rounds],
        ),
        *(
            Figure(name=f"training.{name}.{which}", value=speed, unit=_unit, ideal=bare)
            for which, speed in (("engine", engine), ("packed", packed))
        ),
        *(
            Figure(
                name=f"training.{name}.{which}",
                value=sum(getattr(each, which) for each in rounds) / len(rounds),
                unit="share of the forward tokens",
                higher_is_better=False,
            )
            for which in ("padding", "packed_padding")
        ),
    ]


def _ratio(name: str, unit: str, pairs: Sequence[tuple[float, float]], target: float | None = None) -> Figure:
    return ratio_figure(f"training.{name}", unit, pairs, target=target)
