"""Offloading to the machine's memory moves where optimizer steps are taken, and changes nothing that is trained."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load, save_file
from support.exports import exported_by
from support.small_training import a_batch
from support.training_engines import step_settings, temperature
from transformers import AutoModelForCausalLM, Qwen2Config

from rollog.kernel.errors import ConfigError
from rollog.settings.training import TrainerConfig
from trainer.engines.deepspeed import DeepSpeedEngine

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.step.ports import StepResult

pytestmark = pytest.mark.engine

without_clipping = replace(
    step_settings, optimizer=step_settings.optimizer.model_copy(update={"max_gradient_norm": 1e9})
)
by_optimizer = {"offload_optimizer": True}
by_parameters = {"offload_parameters": True}
ways: dict[str, tuple[int, dict[str, Any]]] = {
    "zero-1": (1, by_optimizer),
    "zero-2": (2, by_optimizer),
    "zero-3": (3, by_optimizer),
    "zero-3-parameters": (3, by_parameters),
    "zero-3-both": (3, by_optimizer | by_parameters),
}
on_cpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="AdamW rounds differently on a GPU and on processors"
)


def engine(zero_stage: int, *, dtype: str = "float32", clipped: bool = True, **keys: Any) -> DeepSpeedEngine:
    return DeepSpeedEngine(
        settings=step_settings if clipped else without_clipping,
        trainer=TrainerConfig(zero_stage=zero_stage, num_minibatches=2, **keys),
        temperature=temperature,
        dtype=dtype,
    )


def trained(engine: DeepSpeedEngine, model_path: str) -> tuple[list[StepResult], bytes]:
    """Three steps of several micro-batches, and the weights after them."""
    with closing(engine):
        engine.start(model_path)
        results = [engine.train_step(a_batch(seed, micro_batch_tokens=25)) for seed in range(3)]
        return results, exported_by(engine)


@on_cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", ways)
def test_the_weights_are_those_without_bit_for_bit_where_nothing_is_clipped(
    model_path: str, way: str, dtype: str
) -> None:
    zero_stage, keys = ways[way]
    results, weights = trained(engine(zero_stage, dtype=dtype, clipped=False, **keys), model_path)
    expected, expected_weights = trained(engine(zero_stage, dtype=dtype, clipped=False), model_path)
    assert weights == expected_weights
    assert [result.losses for result in results] == [result.losses for result in expected]


@pytest.mark.parametrize("way", ways)
def test_clipped_weights_differ_in_last_bits_at_most(model_path: str, way: str) -> None:
    # The norm is summed up parameter by parameter, not over all gradients at once.
    zero_stage, keys = ways[way]
    results, weights = trained(engine(zero_stage, **keys), model_path)
    expected, expected_weights = trained(engine(zero_stage), model_path)
    found = load(weights)
    for name, tensor in load(expected_weights).items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5)
    for result, reference in zip(results, expected, strict=True):
        assert result.gradient_norms == pytest.approx(reference.gradient_norms, rel=1e-5)


@pytest.mark.parametrize("way", ["zero-1", "zero-3-both"])
def test_a_checkpoint_goes_on_where_it_was_saved_bit_for_bit(
    model_path: str, tmp_path: Path, way: str
) -> None:
    zero_stage, keys = ways[way]
    with closing(engine(zero_stage, dtype="bfloat16", **keys)) as offloaded:
        offloaded.start(model_path)
        offloaded.train_step(a_batch(0))
        offloaded.save_checkpoint(tmp_path)
        result = offloaded.train_step(a_batch(1))
        after = exported_by(offloaded)
        offloaded.start(model_path)
        offloaded.load_checkpoint(tmp_path)
        assert offloaded.train_step(a_batch(1)) == result
        assert exported_by(offloaded) == after


def test_further_settings_reach_deepspeed(model_path: str) -> None:
    keys: dict[str, Any] = {"deepspeed": {"zero_optimization": {"reduce_bucket_size": 1234}}}
    with closing(engine(2, **keys)) as passed:
        passed.start(model_path)
        assert vars(passed)["_state"].policy.optimizer.reduce_bucket_size == 1234


def test_a_setting_that_deepspeed_does_not_know_is_named(model_path: str) -> None:
    keys: dict[str, Any] = {"deepspeed": {"zero_optimization": {"redcue_bucket_size": 1}}}
    with (
        closing(engine(2, **keys)) as misspelled,
        pytest.raises(ConfigError, match=r"DeepSpeed \S+ \(.*redcue_bucket_size.*leave it out"),
    ):
        misspelled.start(model_path)


def make_larger_model(directory: Path) -> str:
    """Some eight million parameters, so that an optimizer's state shows in the memory that is taken."""
    config = Qwen2Config(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    config.save_pretrained(directory)
    save_file(
        {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    return str(directory)


def bytes_on_gpu(engine: DeepSpeedEngine, model_path: str) -> tuple[int, bytes]:
    """What torch has handed out between two steps, and the weights then."""
    with closing(engine):
        engine.start(model_path)
        engine.train_step(a_batch(0))
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), exported_by(engine)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:barrier:UserWarning")  # of NCCL, where DeepSpeed names no device
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", ways)
def test_on_a_gpu_the_state_leaves_its_memory_and_weights_differ_in_last_bits(
    tmp_path: Path, way: str, dtype: str
) -> None:
    zero_stage, keys = ways[way]
    path = make_larger_model(tmp_path)
    taken, weights = bytes_on_gpu(engine(zero_stage, dtype=dtype, **keys), path)
    whole, expected = bytes_on_gpu(engine(zero_stage, dtype=dtype), path)
    found = load(weights)
    for name, tensor in load(expected).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-2 if dtype == "bfloat16" else 1e-4, atol=1e-4)
    moments_bytes = 8 * sum(tensor.numel() for tensor in found.values())
    assert whole - taken > (moments_bytes if "offload_optimizer" in keys else 0)
