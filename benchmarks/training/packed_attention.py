"""Packed rows on a GPU: a step with padded rows, with packed rows under a mask, and with variable-length attention.

A random model of 0.5 billion parameters in bfloat16, responses of lognormal lengths, the plain engine. The three take
turns on the same samples, the first step of each left out.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from benchmarks.harness.figures import Figure, mean_figure, ratio_figure
from benchmarks.harness.random_model import random_model, shapes
from benchmarks.training.workloads import Workload, a_batch, lognormal, plan_of
from rollog.kernel.errors import DataError
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.plain import PlainEngine
from trainer.step.ports import StepSettings, TrainingBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_shape = shapes["0.5b"]
_longest_context = 4096
_ways: dict[str, tuple[bool, Literal["masked", "varlen"]]] = {
    "padded": (False, "varlen"),
    "masked": (True, "masked"),
    "varlen": (True, "varlen"),
}
_gib = float(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a step took: seconds, and the GPU's memory beyond what is held between steps."""

    seconds: float
    memory_bytes: int


def measure_packed_attention(
    directory: Path, *, num_rounds: int, seed: int, on_progress: Callable[[str], None]
) -> list[Figure]:
    """Seconds and memory of a step, three ways. Raises DataError without a GPU."""
    if not torch.cuda.is_available():
        raise DataError("--device gpu: PyTorch finds no GPU here; leave the option out to measure on the CPU")
    workload = _workload(directory, seed)
    settings = StepSettings(
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(learning_rate=1e-6),
        num_optimizer_steps=(num_rounds + 1) * workload.num_minibatches,
    )
    found: dict[str, list[_Step]] = {name: [] for name in _ways}
    num_tokens = 0
    with ExitStack() as open_engines:
        engines = {
            name: open_engines.enter_context(closing(_engine(workload, settings, name))) for name in _ways
        }
        for number in range(num_rounds + 1):
            batch = a_batch(workload, number=number, seed=seed)
            for name, engine in engines.items():
                plan = plan_of(workload, batch.samples, number=number, seed=seed, packing=_ways[name][0])
                step = _timed(engine, TrainingBatch(samples=batch.samples, plan=plan))
                if number > 0:  # the first step of each allocates
                    found[name].append(step)
                    on_progress(f"{name} {number}/{num_rounds}: {step.seconds:.3f} s")
            num_tokens += sum(sample.num_tokens for sample in batch.samples)
    return [*_figures(found), _size(num_tokens / (num_rounds + 1))]


def _workload(directory: Path, seed: int) -> Workload:
    """32 groups of 4, responses of 512 tokens in the median and at most 3,072, in micro-batches of 16,384."""
    random_model(_shape, max_context_tokens=_longest_context, seed=seed).save_pretrained(directory)
    return Workload(
        name="packed_attention",
        model_path=str(directory),
        vocabulary=_shape.vocab_size,
        num_groups=32,
        group_size=4,
        num_minibatches=1,
        micro_batch_tokens=16384,
        prompt_tokens=(64, 256),
        response_tokens=lognormal(median=512.0, variation=1.0, longest=3072),
    )


def _engine(workload: Workload, settings: StepSettings, name: str) -> PlainEngine:
    packing, attention = _ways[name]
    engine = PlainEngine(
        settings=settings,
        trainer=TrainerConfig(
            num_minibatches=workload.num_minibatches, packing=packing, packed_attention=attention
        ),
        temperature=1.0,
        dtype="bfloat16",
    )
    engine.start(workload.model_path)
    return engine


def _timed(engine: PlainEngine, batch: TrainingBatch) -> _Step:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held, began = torch.cuda.memory_allocated(), time.perf_counter()
    engine.train_step(batch)
    torch.cuda.synchronize()
    return _Step(seconds=time.perf_counter() - began, memory_bytes=torch.cuda.max_memory_allocated() - held)


def _figures(found: dict[str, list[_Step]]) -> list[Figure]:
    seconds = {name: [step.seconds for step in steps] for name, steps in found.items()}
    return [
        *(
            mean_figure(f"training.packed_attention.{name}.step", "s a step", values, higher_is_better=False)
            for name, values in seconds.items()
        ),
        *(
            ratio_figure(
                f"training.packed_attention.varlen_to_{name}",
                f"seconds of a step, varlen / {name}",
                _pairs(seconds["varlen"], seconds[name]),
                higher_is_better=False,
            )
            for name in ("masked", "padded")
        ),
        *(
            Figure(
                name=f"training.packed_attention.{name}.memory",
                value=max(step.memory_bytes for step in steps) / _gib,
                unit="GiB of the GPU in a step, beyond what is held between steps",
                higher_is_better=False,
            )
            for name, steps in found.items()
        ),
    ]


def _pairs(own: Sequence[float], other: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(own, other, strict=True))


def _size(tokens_per_step: float) -> Figure:
    return Figure(name="training.packed_attention.tokens", value=tokens_per_step, unit="tokens a step")
