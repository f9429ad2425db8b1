"""`rollog bench training`: how fast the trainer's engine is, against a bare PyTorch loop over the same batches.

For each model, in turns and on the same batches: a step of the DeepSpeed engine, the same step of the bare loop
(`bare_training.py`), and the step with packing, whose batch is planned for that. The ratio of the first two is what the
engine costs: plans, statistics, checks, determinism, DeepSpeed. Nothing else of the trainer is in it: no broker, no
export, no commit.

The ratio is taken of CPU seconds of this process, which what else runs on a machine hardly changes; the same of elapsed
seconds stands beside it.
"""

from __future__ import annotations

import gc
import math
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.harness.figures import Figure, bootstrap_interval, ratio_of_means
from benchmarks.harness.random_model import ModelShape, random_model
from benchmarks.training.bare_loop import BareLoop
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from schemas.arrays import float32_array, int32_array, uint8_array
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.model.policy import load_model
from trainer.step.planning import padding_share, plan_step, step_seed
from trainer.step.ports import StepSettings, TrainingBatch, TrainingSample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from schemas import MicroBatch

least_ratio = 0.85
_temperature = 1.0
_unit = "trained tokens per CPU second"
_larger_shape = ModelShape(
    vocab_size=8192,
    hidden_size=256,
    intermediate_size=1024,
    num_layers=4,
    num_heads=8,
    num_key_value_heads=4,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained: a model and batches of `num_groups` groups.

    `response_tokens` are equally likely lengths of a response, `prompt_tokens` the least and most of a prompt.
    """

    name: str
    model_path: str
    vocabulary: int
    num_groups: int
    group_size: int
    num_minibatches: int
    micro_batch_tokens: int
    prompt_tokens: tuple[int, int]
    response_tokens: tuple[int, ...]


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


def demo_workload(model_path: Path, vocabulary: int) -> Workload:
    """A batch of the demo: its model, and lengths as 768 recorded responses of a run had them (mean 8, longest 24)."""
    return Workload(
        name="demo",
        model_path=str(model_path),
        vocabulary=vocabulary,
        num_groups=16,
        group_size=16,
        num_minibatches=4,
        micro_batch_tokens=16384,
        prompt_tokens=(6, 6),
        response_tokens=(*[6] * 29, *[12] * 9, 18, 24),
    )


def larger_workload(directory: Path, seed: int) -> Workload:
    """Longer texts and a model of 6 million parameters, written to `directory`: lengths are lognormal, mean 65."""
    random_model(_larger_shape, max_context_tokens=1024, seed=seed).save_pretrained(directory)
    return Workload(
        name="larger",
        model_path=str(directory),
        vocabulary=_larger_shape.vocab_size,
        num_groups=8,
        group_size=4,
        num_minibatches=2,
        micro_batch_tokens=1024,
        prompt_tokens=(16, 48),
        response_tokens=_lognormal(median=48.0, variation=1.0, longest=256),
    )


def _lognormal(*, median: float, variation: float, longest: int, count: int = 40) -> tuple[int, ...]:
    """Equally likely values of a lognormal distribution, cut off at `longest`."""
    sigma = math.sqrt(math.log(1 + variation**2))
    shares = [(number + 0.5) / count for number in range(count)]
    return tuple(
        min(max(round(median * math.exp(sigma * NormalDist().inv_cdf(share))), 1), longest)
        for share in shares
    )


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


def a_batch(workload: Workload, *, number: int, seed: int) -> TrainingBatch:
    """A batch as a run would record it: a plan for padding, advantages of both signs, mu near the policy's."""
    draw = np.random.default_rng([seed, number])
    groups = [
        [_sample(workload, draw) for _ in range(workload.group_size)] for _ in range(workload.num_groups)
    ]
    samples = tuple(sample for group in groups for sample in group)
    return TrainingBatch(
        samples=samples, plan=_plan(workload, samples, number=number, seed=seed, packing=False)
    )


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
    plan = _plan(workload, batch.samples, number=number, seed=seed, packing=True)
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


def _plan(
    workload: Workload, samples: Sequence[TrainingSample], *, number: int, seed: int, packing: bool
) -> tuple[MicroBatch, ...]:
    lengths = [sample.num_tokens for sample in samples]
    size = workload.group_size
    return plan_step(
        [lengths[begin : begin + size] for begin in range(0, len(lengths), size)],
        num_minibatches=workload.num_minibatches,
        world_size=1,
        micro_batch_tokens=workload.micro_batch_tokens,
        seed=step_seed(seed, number),
        packing=packing,
    )


def _sample(workload: Workload, draw: np.random.Generator) -> TrainingSample:
    least, most = workload.prompt_tokens
    prompt = int(draw.integers(least, most + 1))
    length = int(draw.choice(workload.response_tokens))
    return TrainingSample(
        prompt_token_ids=int32_array(draw.integers(0, workload.vocabulary, prompt)),
        token_ids=int32_array(draw.integers(0, workload.vocabulary, length)),
        behaviour_logprobs=float32_array(-math.log(workload.vocabulary) + 0.1 * draw.standard_normal(length)),
        loss_mask=uint8_array(np.ones(length)),
        advantage=float(draw.standard_normal()),
    )


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
    return Figure(
        name=f"training.{name}",
        value=ratio_of_means(pairs),
        unit=unit,
        target=target,
        interval=bootstrap_interval(pairs, ratio_of_means),
        num_draws=len(pairs),
    )
