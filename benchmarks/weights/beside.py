"""How long publishing holds training up: the whole loop over the broker in memory, with weights of a given size.

Trainer, store, worker and dispatcher are the real ones. The engine holds random bfloat16 tensors and waits in place of
an accelerator's step; then it changes a slice of every tensor, so that each version has other bytes.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness.figures import Figure, mean_figure
from benchmarks.harness.simulated_run import SimulatedRun
from benchmarks.harness.variant import Job, Variant
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.versions.tensors import TensorSpec, file_order
from schemas import Step
from trainer.engines.simulated import SimulatedTrainingEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape
    from rollog.kernel.versions.tensors import TensorSink
    from rollog.settings.settings import Settings
    from schemas import StepTimings
    from trainer.step.ports import StepResult, TrainingBatch

published_seconds = 5.0
"""Of a step, in place of an accelerator's work."""
published_steps = 12
_settling_steps = 2
_changed_share = 50
"""One element of so many changes in a step: 2 %, as real updates at a learning rate of 1e-6 are measured to do."""


class LargeEngine(SimulatedTrainingEngine):
    """The simulated engine with tensors of a model beside its digest."""

    def __init__(self, shape: ModelShape, *, seconds: float) -> None:
        super().__init__(step_seconds=seconds)
        draw = np.random.default_rng(0)
        # Exponents of ones have no bits of a NaN: what was drawn is finite.
        self._tensors = {
            spec: draw.integers(0, 0x3F80, spec.num_bytes // 2, dtype=np.uint16) for spec in table_of(shape)
        }
        self._num_steps = 0

    @property
    def num_bytes(self) -> int:
        """Of all tensors but the digest."""
        return sum(spec.num_bytes for spec in self._tensors)

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """Wait, then change every tensor a little."""
        result = super().train_step(batch)
        self._num_steps += 1
        for data in self._tensors.values():
            data[self._num_steps % _changed_share :: _changed_share] ^= 1
        return result

    def export_weights(self, sink: TensorSink | None) -> None:
        """The tensors, then the digest: its type is the narrowest."""
        assert sink is not None
        digest = memoryview(self._started())
        own = TensorSpec("digest", "U8", (len(digest),))
        sink.begin(file_order([*self._tensors, own]))
        for spec in file_order(list(self._tensors)):
            sink.add(spec, self._tensors[spec].view(np.uint8).data)
        sink.add(own, digest)


def table_of(shape: ModelShape) -> list[TensorSpec]:
    """The large tensors of a Qwen2 model of this shape, in bfloat16."""
    hidden, between = shape.hidden_size, shape.intermediate_size
    keys = hidden // shape.num_heads * shape.num_key_value_heads
    sizes = {
        "q": (hidden, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, hidden),
        "gate": (between, hidden),
        "up": (between, hidden),
        "down": (hidden, between),
    }
    layers = [
        TensorSpec(f"layers.{number}.{name}", "BF16", size)
        for number in range(shape.num_layers)
        for name, size in sizes.items()
    ]
    return [TensorSpec("embed", "BF16", (shape.vocab_size, hidden)), *layers]


class LargeRun(SimulatedRun):
    """A run whose trainer has that engine; `beside` says whether it publishes beside the next step."""

    def __init__(self, job: Job, home: Path, shape: ModelShape, *, beside: bool) -> None:
        self._shape = shape
        self._beside = beside
        super().__init__(job, MemoryBroker(), home)

    def settings(self) -> Settings:
        """Those of the variant, but for how it publishes."""
        return super().settings().changed(trainer={"publish_beside_training": self._beside})

    def training_engine(self) -> LargeEngine:
        """The engine with the tensors."""
        return LargeEngine(self._shape, seconds=self._variant.train_seconds)


@dataclass(frozen=True, slots=True)
class Held:
    """Of one run, without its first steps: shares of a step in which training was held up, and seconds of a step."""

    shares: list[float]
    seconds: list[float]


def measure_beside(
    *,
    shape: ModelShape,
    home: Path,
    seed: int,
    on_progress: Callable[[str], None],
    step_seconds: float = published_seconds,
    num_steps: int = published_steps,
) -> list[Figure]:
    """Publishing beside and inside, each in a run of its own; what a copy of the bytes takes stands beside them."""
    variant = a_variant(step_seconds, num_steps)
    num_bytes = sum(spec.num_bytes for spec in table_of(shape))
    copy_seconds = seconds_of_a_copy(num_bytes)
    on_progress(f"{num_bytes / 1e9:.2f} GB of weights, copied in {copy_seconds:.3f} s")
    figures = [
        Figure(
            name="weights.beside.copy",
            value=copy_seconds,
            unit="s for one copy of the bytes",
            higher_is_better=False,
        )
    ]
    for name, beside in (("beside", True), ("inside", False)):
        held = held_up(Job(variant=variant, seed=seed, number=0, speed=1.0), home, shape, beside=beside)
        on_progress(f"{name}: {fmean(held.shares):.3f} of a step, {fmean(held.seconds):.2f} s a step")
        figures += [
            mean_figure(
                f"weights.beside.{name}.held",
                f"share of a step of {step_seconds:g} s in which publishing holds training up",
                held.shares,
                target=0.08 if beside else None,
                ideal=copy_seconds / step_seconds,
                higher_is_better=False,
            ),
            mean_figure(
                f"weights.beside.{name}.step",
                "s a step",
                held.seconds,
                ideal=step_seconds,
                higher_is_better=False,
            ),
        ]
    return figures


def held_up(job: Job, home: Path, shape: ModelShape, *, beside: bool) -> Held:
    """Make one run. Raises what ended a role, or BrokerTimeout."""
    run = LargeRun(job, home / secrets.token_hex(4), shape, beside=beside)
    try:
        run.create()
        with run.roles():
            run.wait_until_closed(job.variant.num_steps * 60.0)
        steps = [record.body for _, record in run.ledger() if isinstance(record.body, Step)]
    finally:
        run.remove()
    timings = [step.timings for step in steps[_settling_steps:]]
    return Held([each.publish_seconds / _seconds(each) for each in timings], [*map(_seconds, timings)])


def a_variant(step_seconds: float, num_steps: int) -> Variant:
    """Alpha 2 and short rollouts: there are always samples for the next step."""
    return Variant(
        name="beside",
        num_groups=4,
        group_size=2,
        slots_per_worker=16,
        num_steps=num_steps,
        alpha=2.0,
        train_seconds=step_seconds,
        median_seconds=0.5,
        longest_seconds=2.0,
    )


def seconds_of_a_copy(num_bytes: int) -> float:
    """The best of three copies into memory that is there."""
    source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - began)
    return best


def _seconds(timings: StepTimings) -> float:
    return timings.wait_seconds + timings.train_seconds + timings.publish_seconds
