"""The start at ZeRO stage 3: layers are shared out as they are made, and nothing else changes."""

from __future__ import annotations

import math
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load, save_file
from support.small_training import make_model
from support.two_ranks_process import step_settings, temperature
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from rollog.kernel.errors import DataError, WeightsError
from rollog.settings.training import TrainerConfig
from trainer.engines import deepspeed
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.zero_sharing import ZeroSharing
from trainer.model import policy
from trainer.model.policy import load_weights
from trainer.model.sharing import whole_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def engine_of(zero_stage: int, *, dtype: str = "float32", packing: bool = False) -> DeepSpeedEngine:
    return DeepSpeedEngine(
        settings=step_settings,
        trainer=TrainerConfig(num_minibatches=2, zero_stage=zero_stage, packing=packing),
        temperature=temperature,
        dtype=dtype,
    )


def test_a_rank_that_shares_weights_out_has_one_layer_of_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[torch.nn.Module] = []
    whole: list[int] = []

    class Watching(ZeroSharing):
        @contextmanager
        def _gathering(self, tensors: Iterable[torch.Tensor], modifier_rank: int | None) -> Iterator[None]:
            with super()._gathering(tensors, modifier_rank):
                whole.append(sum(parameter.numel() for parameter in built[0].parameters()))
                yield

        def place(self, model: torch.nn.Module) -> None:
            super().place(model)
            assert sum(parameter.numel() for parameter in model.parameters()) == 0

    def load(model: torch.nn.Module, *arguments: Any, **keywords: Any) -> None:
        built.append(model)
        load_weights(model, *arguments, **keywords)

    monkeypatch.setattr(deepspeed, "ZeroSharing", Watching)
    monkeypatch.setattr(policy, "load_weights", load)
    model_path = make_model(tmp_path / "model")
    with closing(engine_of(3, packing=True)) as engine:
        engine.start(model_path, next((tmp_path / "model").glob("*.safetensors")))
        sizes = [
            sum(math.prod(whole_shape(parameter)) for parameter in layer.parameters())
            for layer in built[0].modules()
            if "Layer" in type(layer).__name__ or isinstance(layer, torch.nn.Embedding)
        ]
    assert len(whole) > 40, "each weight was written, and each layer called by two probes"
    assert max(whole) == max(sizes)


@pytest.mark.parametrize("form", ["model", "version"])
def test_what_is_not_shared_out_keeps_its_type(tmp_path: Path, form: str) -> None:
    """Rounded to bfloat16, the frequencies of rotary positions would give other log-probabilities."""
    model_path = make_model(tmp_path / "model")
    weights_path = next((tmp_path / "model").glob("*.safetensors")) if form == "version" else None
    answered = []
    for zero_stage in (1, 3):
        engine = engine_of(zero_stage, dtype="bfloat16")
        with closing(engine):
            engine.start(model_path, weights_path)
            answered.append(engine.sequence_logprobs(range(1, 12)))
    assert answered[0] == pytest.approx(answered[1], abs=1e-6)


@pytest.mark.parametrize("form", ["model", "version"])
def test_a_start_that_fails_once_layers_are_made_leaves_nothing(tmp_path: Path, form: str) -> None:
    model_path = make_model(tmp_path / "model")
    linear = torch.nn.functional.linear
    engine = engine_of(3)
    stored = next((tmp_path / "model").glob("*.safetensors"))
    tensors = load(stored.read_bytes())
    tensors["model.norm.weight"] = torch.ones(3)
    other = tmp_path / "other.safetensors" if form == "version" else stored
    save_file(tensors, other, {"format": "pt"})
    with pytest.raises((DataError, WeightsError), match=r"model\.path|do not fit the model"):
        engine.start(model_path, other if form == "version" else None)
    assert torch.nn.functional.linear is linear
    assert not torch.distributed.is_initialized()
    with closing(engine):
        engine.start(make_model(tmp_path / "whole"))
        assert engine.describe().zero_stage == 3


def test_a_layer_may_compute_with_weights_of_parts_that_it_does_not_call(tmp_path: Path) -> None:
    """Here the convolution of linear attention."""
    config = Qwen3NextConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        decoder_sparse_step=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen3NextForCausalLM(config).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    answered = []
    for zero_stage in (1, 3):
        with closing(engine_of(zero_stage)) as engine:
            engine.start(str(tmp_path))
            answered.append(engine.sequence_logprobs(range(1, 12)))
    assert answered[0] == pytest.approx(answered[1], abs=1e-5)
