"""CPU seconds of training steps of one engine, whose log-probabilities come in chunks and from all logits, in turns.

CPU seconds of the process, because what else runs on a machine hardly changes them. Both ways train on the same batch,
one after the other, and take turns in who is first.
"""

from __future__ import annotations

import gc
import time
from contextlib import closing
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.harness.figures import Figure, ratio_figure
from benchmarks.harness.random_model import ModelShape, random_model
from benchmarks.training.workloads import Workload, a_batch
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.plain import PlainEngine
from trainer.model.output_layer import OutputComputation
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer.step.ports import TrainingBatch

_target = 1.15
_larger_shape = ModelShape(
    vocab_size=32_768,
    hidden_size=768,
    intermediate_size=2048,
    num_layers=12,
    num_heads=12,
    num_key_value_heads=4,
)


def larger_workload(directory: Path, seed: int) -> Workload:
    """A random model of 0.1 billion parameters, written to `directory`; 256 trained tokens a step."""
    random_model(_larger_shape, max_context_tokens=1024, seed=seed).save_pretrained(directory)
    return Workload(
        name="0.1B",
        model_path=str(directory),
        vocabulary=_larger_shape.vocab_size,
        num_groups=1,
        group_size=4,
        num_minibatches=1,
        micro_batch_tokens=4096,
        prompt_tokens=(8, 16),
        response_tokens=(64,),
    )


def measure_chunks(
    workload: Workload, *, chunk_tokens: int, num_pairs: int, seed: int, on_progress: Callable[[str], None]
) -> list[Figure]:
    """Mean seconds of a step both ways, and their ratio over pairs."""
    settings = StepSettings(
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(learning_rate=1e-6),
        num_optimizer_steps=2 * (num_pairs + 1) * workload.num_minibatches,
    )
    trainer = TrainerConfig(
        num_minibatches=workload.num_minibatches, num_threads=1, logprob_chunk_tokens=chunk_tokens
    )
    engine = PlainEngine(settings=settings, trainer=trainer, temperature=1.0, dtype="float32")
    pairs = []
    with closing(engine):
        engine.start(workload.model_path)
        policy: Any = vars(engine)["_state"].policy
        computations = {"chunks": policy.computation, "at_once": OutputComputation()}
        for number in range(num_pairs + 1):
            batch = a_batch(workload, number=number, seed=seed)
            seconds = {}
            for way in sorted(computations, reverse=number % 2 == 1):
                policy.computation = computations[way]
                seconds[way] = step_seconds(engine, batch)
            pairs.append((seconds["chunks"], seconds["at_once"]))
            on_progress(f"{workload.name} {number}/{num_pairs}: {seconds}")
    return figures_of(workload.name, pairs[1:])  # the first steps allocate


def step_seconds(engine: PlainEngine, batch: TrainingBatch) -> float:
    """CPU seconds of this process for one training step."""
    gc.collect()
    began = time.process_time()
    engine.train_step(batch)
    return time.process_time() - began


def figures_of(name: str, pairs: list[tuple[float, float]]) -> list[Figure]:
    """From the seconds of each pair: in chunks, and all at once."""
    return [
        *(
            Figure(
                name=f"logprobs.{name}.{way}",
                value=fmean(pair[side] for pair in pairs),
                unit="CPU seconds of a training step",
                higher_is_better=False,
            )
            for side, way in enumerate(("chunks", "at_once"))
        ),
        ratio_figure(
            f"logprobs.{name}.cost",
            "CPU seconds of a step in chunks / those all at once",
            pairs,
            target=_target,
            higher_is_better=False,
        ),
    ]
