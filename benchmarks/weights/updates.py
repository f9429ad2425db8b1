"""Versions of a model as real training makes them: the trainer's plain engine in bfloat16 on float32 masters.

Responses, behaviour log-probabilities and advantages are random, so that nothing is learnt. What matters is how far
AdamW moves each weight in a step, and whether that is enough for the next value that bfloat16 has.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.exports import file_of
from benchmarks.harness.random_model import random_model
from benchmarks.training.workloads import Workload, a_batch
from rollog.demo.word_models import save_model
from rollog.kernel.versions.bit_patterns import BitPatterns, bit_patterns
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.plain import PlainEngine
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape

Tensors = dict[str, BitPatterns]

_item_size = 2
_longest_context = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How the model is trained from one version to the next."""

    learning_rate: float
    optimizer_steps: int

    @property
    def name(self) -> str:
        """As it stands in the names of figures."""
        return f"rate_{self.learning_rate:g}.optimizer_steps_{self.optimizer_steps}"


def exported_versions(
    model_path: Path, shape: ModelShape, variant: Variant, *, num_steps: int, seed: int
) -> Iterator[bytes]:
    """The safetensors files of versions 0, 1, 2 ... `num_steps`, as the engine exports them."""
    workload = _workload(model_path, shape, variant)
    settings = _settings(variant, num_steps)
    trainer = TrainerConfig(num_minibatches=variant.optimizer_steps, num_threads=1)
    with closing(
        PlainEngine(settings=settings, trainer=trainer, temperature=1.0, dtype="bfloat16")
    ) as engine:
        engine.start(workload.model_path)
        yield file_of(engine.export_weights)
        for number in range(num_steps):
            engine.train_step(a_batch(workload, number=number, seed=seed))
            yield file_of(engine.export_weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTraining:
    """An engine that trains adapters of all linear layers, started."""

    engine: PlainEngine
    workload: Workload

    def step(self, number: int, seed: int) -> None:
        """Train the next version."""
        self.engine.train_step(a_batch(self.workload, number=number, seed=seed))

    def close(self) -> None:
        """Give its memory back."""
        self.engine.close()


def adapter_engine(model_path: Path, shape: ModelShape, *, rank: int, num_steps: int) -> AdapterTraining:
    """In bfloat16, at a learning rate that is usual for adapters."""
    variant = Variant(learning_rate=1e-4, optimizer_steps=1)
    engine = PlainEngine(
        settings=_settings(variant, num_steps),
        trainer=TrainerConfig(num_minibatches=1, num_threads=1, lora_rank=rank, lora_alpha=2 * rank),
        temperature=1.0,
        dtype="bfloat16",
    )
    engine.start(str(model_path))
    return AdapterTraining(engine=engine, workload=_workload(model_path, shape, variant))


def write_model(directory: Path, shape: ModelShape, seed: int) -> None:
    """The model that every variant begins with."""
    save_model(random_model(shape, _longest_context, seed), directory)


def tensors_of(exported: bytes) -> Tensors:
    """The tensors of a safetensors file in bfloat16, where they stand in it."""
    begin = 8 + int.from_bytes(exported[:8], "little")
    header = json.loads(exported[8:begin])
    header.pop("__metadata__", None)
    data = memoryview(exported)[begin:]
    return {
        name: bit_patterns(data[slice(*entry["data_offsets"])], _item_size)
        for name, entry in sorted(header.items())
    }


def _settings(variant: Variant, num_steps: int) -> StepSettings:
    return StepSettings(
        algorithm=AlgorithmConfig(type="policy_gradient", aggregation="token_mean"),
        optimizer=OptimizerConfig(learning_rate=variant.learning_rate, final_fraction=1.0),
        num_optimizer_steps=num_steps * variant.optimizer_steps,
    )


def _workload(model_path: Path, shape: ModelShape, variant: Variant) -> Workload:
    """8 groups of 2, about 70 tokens each: as small as the distribution of gradients allows, for one thread."""
    return Workload(
        name="updates",
        model_path=str(model_path),
        vocabulary=shape.vocab_size,
        num_groups=8,
        group_size=2,
        num_minibatches=variant.optimizer_steps,
        micro_batch_tokens=512,
        prompt_tokens=(8, 32),
        response_tokens=(16, 32, 48, 64, 96),
    )
