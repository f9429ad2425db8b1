"""Runs whose weights have the size of a model: all roles are real, over the broker in memory.

An accelerator's work is a wait: the engines are those of `large_engines`, and rollouts are as short as they need to be
for samples to be there when a step begins.
"""

from __future__ import annotations

import gc
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.harness.simulated_run import SimulatedRun, prefix
from benchmarks.harness.variant import Job, Variant
from benchmarks.weights.large_engines import HoldingEngine, changed_share
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.shared_memory import shared_directory
from rollog.kernel.weights import WeightsStore
from schemas import Step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape
    from benchmarks.weights.large_engines import LargeEngine
    from rollog.settings.settings import Settings
    from schemas import StepTimings

settling_steps = 2
"""At the beginning, which are not measured."""
steps_between_checkpoints = 10
longest_seconds_of_a_step = 180.0
_engine_seconds = 5.0
"""Of training in a step, in the run's own time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a run publishes: in full or, where it pays, as patches; beside the next step or inside its own.

    `store` is the address of the weights; left out, a directory of the run. With `checkpoints` the engine's state is
    saved after every tenth step, as by default. The first copy takes memory as well, and is not measured. A step
    changes the share `changed` of the elements.
    """

    shape: ModelShape
    patches: bool = True
    beside: bool = True
    store: str | None = None
    checkpoints: bool = False
    changed: float = changed_share

    @property
    def settling_steps(self) -> int:
        """Steps at the beginning that are not measured; the record of one names the checkpoint after the one before."""
        return steps_between_checkpoints + 1 if self.checkpoints else settling_steps


@dataclass(frozen=True, slots=True)
class Stepped:
    """Timings of the steps after the first ones, and the seconds between each commit and the one before."""

    timings: list[StepTimings]
    seconds: list[float]

    @property
    def held_shares(self) -> list[float]:
        """Of each step, in which publishing, and the checkpoint after the step before, hold training up."""
        return [(each.publish_seconds + each.checkpoint_seconds) / _seconds(each) for each in self.timings]

    @property
    def busy_seconds(self) -> list[float]:
        """Of each step, as the trainer counts them."""
        return [*map(_seconds, self.timings)]


class LargeRun(SimulatedRun):
    """A run that publishes in one way."""

    def __init__(self, job: Job, home: Path, way: Way) -> None:
        self.way = way
        super().__init__(job, MemoryBroker(), home)
        if way.store is not None:
            self._store = WeightsStore(way.store)

    def settings(self) -> Settings:
        """Those of the variant, but for how it publishes."""
        return (
            super()
            .settings()
            .changed(
                trainer={"publish_beside_training": self.way.beside} | self._checkpoints,
                weights={"patches": "auto" if self.way.patches else "off"},
            )
        )

    @contextmanager
    def roles(self) -> Iterator[None]:
        """As all. What is there before the run is no work of the garbage collector, as in the processes of roles."""
        gc.collect()
        gc.freeze()
        with super().roles():
            yield

    @property
    def shared(self) -> Path | None:
        """Where workers of a run have their copy by default; the trainer writes nothing there."""
        return shared_directory("auto", prefix, self._name, self._store.uri)

    @property
    def _checkpoints(self) -> dict[str, object]:
        every = steps_between_checkpoints if self.way.checkpoints else self._variant.num_steps
        return {"checkpoint_every_steps": every, "keep_checkpoints": 1}

    def training_engine(self) -> LargeEngine:
        """The engine with the tensors."""
        kind: type[LargeEngine] = HoldingEngine
        if self.way.checkpoints:
            from benchmarks.weights.checkpointing_engine import (  # noqa: PLC0415 - it needs PyTorch
                CheckpointingEngine,
            )

            kind = CheckpointingEngine
        return kind(
            self.way.shape, seconds=self._variant.train_seconds / self._speed, changed=self.way.changed
        )


def steps_of(job: Job, way: Way, home: Path) -> Stepped:
    """Make one run. Raises what ended a role, or BrokerTimeout."""
    run = LargeRun(job, home / secrets.token_hex(4), way)
    try:
        run.create()
        with run.roles():
            run.wait_until_closed(job.variant.num_steps * longest_seconds_of_a_step * job.speed)
        return stepped(run, way.settling_steps)
    finally:
        run.remove()


def stepped(run: SimulatedRun, settling: int = settling_steps) -> Stepped:
    """What the ledger of a run says of its steps, but for the first ones."""
    steps = [(at / 1000, record.body.timings) for at, record in run.ledger() if isinstance(record.body, Step)]
    moments = [at for at, _ in steps]
    seconds = [now - before for before, now in pairwise(moments)]
    return Stepped([timings for _, timings in steps[settling:]], seconds[settling - 1 :])


def a_job(name: str, *, step_seconds: float, num_steps: int, seed: int, alpha: float = 2.0) -> Job:
    """Training waits for `step_seconds`; rollouts are so short that with alpha 1 and 2 there are always samples."""
    variant = Variant(
        name=name,
        num_groups=4,
        group_size=2,
        slots_per_worker=16,
        num_steps=num_steps,
        alpha=alpha,
        train_seconds=_engine_seconds,
        median_seconds=0.1 * _engine_seconds,
        longest_seconds=0.4 * _engine_seconds,
    )
    return Job(variant=variant, seed=seed, number=0, speed=_engine_seconds / step_seconds)


def _seconds(timings: StepTimings) -> float:
    return timings.wait_seconds + timings.train_seconds + timings.publish_seconds + timings.checkpoint_seconds
