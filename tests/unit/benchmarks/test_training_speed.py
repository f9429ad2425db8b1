"""The bare loop that the engine is measured against does the same work; the benchmark's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load
from support.exports import exported_by
from support.small_training import make_model, vocabulary

from benchmarks.training.bare_loop import BareLoop
from benchmarks.training.measure import measure_training
from benchmarks.training.workloads import Workload, a_batch, demo_workload, larger_workload
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.plain import PlainEngine
from trainer.model.policy import load_model, untied_tensors
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    return Workload(
        name="tiny",
        model_path=make_model(tmp_path / "model"),
        vocabulary=vocabulary,
        num_groups=4,
        group_size=3,
        num_minibatches=2,
        micro_batch_tokens=60,
        prompt_tokens=(2, 4),
        response_tokens=(1, 3, 3, 8),
    )


def test_the_bare_loop_gives_the_weights_of_an_engine(workload: Workload) -> None:
    settings = StepSettings(
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=2, max_gradient_norm=0.3),
        num_optimizer_steps=10,
    )
    engine = PlainEngine(
        settings=settings, trainer=TrainerConfig(num_minibatches=2), temperature=0.8, dtype="float32"
    )
    engine.start(workload.model_path)
    model = load_model(workload.model_path, None, "float32")
    bare = BareLoop(model, settings, 0.8)
    for number in range(4):
        batch = a_batch(workload, number=number, seed=3)
        assert bare.train_step(batch) == pytest.approx(engine.train_step(batch).losses, abs=1e-5)
    for name, tensor in load(exported_by(engine)).items():
        torch.testing.assert_close(dict(untied_tensors(model))[name], tensor, atol=1e-5, rtol=1e-5)
    engine.close()


def test_batches_are_a_function_of_seed_and_number(workload: Workload) -> None:
    def tokens(number: int, seed: int) -> bytes:
        samples = a_batch(workload, number=number, seed=seed).samples
        return np.concatenate([sample.token_ids for sample in samples]).tobytes()

    assert tokens(1, 0) == tokens(1, 0)
    assert len({tokens(1, 0), tokens(2, 0), tokens(1, 1)}) == 3


def test_workloads_have_the_lengths_they_name(tmp_path: Path) -> None:
    demo = demo_workload(tmp_path, 30)
    larger = larger_workload(tmp_path / "larger", seed=0)
    assert np.mean(demo.response_tokens) == pytest.approx(8.0, abs=0.5)
    assert np.mean(larger.response_tokens) == pytest.approx(65.3, abs=0.5)
    assert max(larger.response_tokens) == 256
    model = load_model(larger.model_path, None, "float32")
    assert sum(tensor.numel() for _, tensor in untied_tensors(model)) == pytest.approx(6e6, rel=0.1)


def test_figures_are_measured_for_every_workload(workload: Workload) -> None:
    lines: list[str] = []
    figures = measure_training([workload], num_rounds=2, num_threads=1, seed=0, on_progress=lines.append)
    values = {figure.name: figure.value for figure in figures}
    assert values.keys() == {
        f"training.tiny.{name}"
        for name in ("ratio", "elapsed_ratio", "packing", "engine", "packed", "padding", "packed_padding")
    }
    assert all(value > 0 for name, value in values.items() if "padding" not in name)
    assert values["training.tiny.packed_padding"] < values["training.tiny.padding"] < 1
    assert len(lines) == 2
