"""CPU seconds of the demo's training step, in a process for each level of `trainer.reproducible`.

CPU seconds of the process, because what else runs on a machine hardly changes them. Levels take turns, so that a
machine that becomes slower does so for all of them.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, ratio_figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.settings.training import Reproducible

levels: tuple[Reproducible, ...] = ("machine", "avx2", "baseline")


def measure_levels(
    model: Path, *, num_rounds: int, num_steps: int, seed: int, on_progress: Callable[[str], None]
) -> list[Figure]:
    """Mean seconds of a step at every level, and the ratio of the pinned ones to `machine`.

    Raises EngineError where the processor lacks a level.
    """
    seconds: dict[Reproducible, list[float]] = {level: [] for level in levels}
    for number in range(num_rounds):
        first = number % len(levels)
        for level in levels[first:] + levels[:first]:
            taken = _in_own_process(level, model, num_steps, seed)
            seconds[level].append(taken)
            on_progress(f"{number + 1}/{num_rounds} {level}: {taken:.3f} CPU seconds a step")
    return [
        *(
            Figure(
                name=f"reproducible.{level}.seconds",
                value=fmean(taken),
                unit="CPU seconds of a training step",
                higher_is_better=False,
            )
            for level, taken in seconds.items()
        ),
        *(
            ratio_figure(
                f"reproducible.{level}.cost",
                "CPU seconds of a step / those under machine",
                list(zip(seconds[level], seconds["machine"], strict=True)),
                higher_is_better=False,
            )
            for level in levels
            if level != "machine"
        ),
    ]


def _in_own_process(level: Reproducible, model: Path, num_steps: int, seed: int) -> float:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(step_seconds, level, str(model), num_steps, seed).result()


def step_seconds(level: Reproducible, model: str, num_steps: int, seed: int) -> float:
    """Mean CPU seconds of a step in this process, whose instructions are pinned for good."""
    from trainer.model.arithmetic import pin_instructions  # noqa: PLC0415  # loads torch

    pin_instructions(level)
    # Only now: whatever computes as it is imported would have chosen its instructions before.
    from benchmarks.training.workloads import a_batch, demo_workload  # noqa: PLC0415
    from rollog.demo.model import vocabulary  # noqa: PLC0415
    from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig  # noqa: PLC0415
    from trainer.engines.deepspeed import DeepSpeedEngine  # noqa: PLC0415
    from trainer.step.ports import StepSettings  # noqa: PLC0415

    workload = demo_workload(model, len(vocabulary))
    settings = StepSettings(
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(learning_rate=1e-5),
        num_optimizer_steps=(num_steps + 1) * workload.num_minibatches,
    )
    trainer = TrainerConfig(num_minibatches=workload.num_minibatches, num_threads=1)
    engine = DeepSpeedEngine(settings=settings, trainer=trainer, temperature=1.0, dtype="float32")
    taken = []
    with closing(engine):
        engine.start(workload.model_path)
        for number in range(num_steps + 1):
            batch = a_batch(workload, number=number, seed=seed)
            gc.collect()
            began = time.process_time()
            engine.train_step(batch)
            taken.append(time.process_time() - began)
    return fmean(taken[1:])  # the first step allocates
