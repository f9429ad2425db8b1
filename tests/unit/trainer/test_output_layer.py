"""Log-probabilities in chunks with the output layers of real model classes: as with logits of all tokens at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.small_training import a_training_sample
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    PhiConfig,
    Qwen2Config,
)

from rollog.kernel.errors import ConfigError
from rollog.settings.training import TrainerConfig
from trainer.model.output_layer import LogitTransform, OutputComputation, find_transform
from trainer.model.policy import Policy
from trainer.model.preparation import output_computation
from trainer.step.collation import collate
from trainer.step.forward import policy_outputs

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

sizes: dict[str, Any] = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
configs = {
    "qwen2": Qwen2Config(**sizes, tie_word_embeddings=False),
    "tied": Qwen2Config(**sizes, tie_word_embeddings=True),
    "gemma2": Gemma2Config(**sizes, head_dim=8, final_logit_softcapping=3.0),
    "cohere": CohereConfig(**sizes, logit_scale=0.25),
    "granite": GraniteConfig(**sizes, logits_scaling=3.0),
    "phi, with a bias": PhiConfig(**sizes),
    "gpt2": GPT2Config(vocab_size=23, n_embd=16, n_layer=1, n_head=2, n_positions=64, initializer_range=0.5),
}
expected_transforms = {
    "gemma2": LogitTransform(cap=3.0),
    "cohere": LogitTransform(factor=0.25),
    "granite": LogitTransform(divisor=3.0),
}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(configs[name], dtype=dtype)  # type: ignore[no-untyped-call]
        layer: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if layer.bias is not None:
            nn.init.normal_(layer.bias)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def outputs_and_gradients(model: PreTrainedModel, computation: OutputComputation) -> list[Tensor]:
    policy = Policy(model, 0.8, computation=computation)
    batch = collate([a_training_sample(seed, response_tokens=5 + seed) for seed in range(3)])
    outputs = policy_outputs(policy, batch, with_entropy=True)
    assert outputs.entropies_BR is not None
    parameters = list(model.parameters())
    loss = (outputs.logprobs_BR * outputs.logprobs_BR.detach() + 0.3 * outputs.entropies_BR).sum()
    gradients = torch.autograd.grad(loss, parameters)
    return [outputs.logprobs_BR.detach(), outputs.entropies_BR.detach(), *gradients]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", configs)
def test_what_a_model_does_to_its_logits_is_found(name: str, dtype: torch.dtype) -> None:
    assert find_transform(model_of(name, dtype)) == expected_transforms.get(name, LogitTransform())


@pytest.mark.parametrize("name", configs)
def test_chunks_give_what_all_logits_at_once_give(name: str) -> None:
    in_chunks = output_computation(model_of(name), TrainerConfig(logprob_chunk_tokens=4))
    assert in_chunks.chunk_tokens == 4
    found, expected = (
        outputs_and_gradients(model_of(name), computation) for computation in (in_chunks, OutputComputation())
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", configs)
def test_an_output_layer_in_float32_is_the_same_in_chunks_and_at_once(name: str) -> None:
    at_once, in_chunks, narrow = (
        outputs_and_gradients(
            model_of(name, torch.bfloat16),
            output_computation(
                model_of(name, torch.bfloat16),
                TrainerConfig(logprob_chunk_tokens=tokens, output_layer_dtype=dtype),
            ),
        )
        for tokens, dtype in ((0, "float32"), (4, "float32"), (0, "model"))
    )
    for one, other in zip(in_chunks[:2], at_once[:2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(narrow[0], at_once[0], atol=1e-4)


class AddingLayer(nn.Linear):
    """A linear layer, and something after it."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) + 1.0


class NoLinearLayer(nn.Module):
    """Gives logits, and is no linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(23, 16))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weight.T


def shifted(_model: nn.Module, _inputs: Any, output: Any) -> Any:
    output.logits = output.logits - output.logits.mean(dim=-1, keepdim=True)
    return output


def shifting_model() -> PreTrainedModel:
    model = model_of("qwen2")
    model.register_forward_hook(shifted)
    return model


def with_layer(layer: nn.Module) -> PreTrainedModel:
    model = model_of("qwen2")
    model.set_output_embeddings(layer)  # type: ignore[no-untyped-call]
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (shifting_model(), "it changes logits in a way that is not known"),
        (
            with_layer(AddingLayer(16, 23)),
            "its output layer, a AddingLayer, computes more than a linear layer",
        ),
        (with_layer(NoLinearLayer()), "its output layer is a NoLinearLayer, not a linear layer"),
    ],
    ids=["after the layer", "in the layer", "no linear layer"],
)
def test_what_cannot_be_seen_is_computed_at_once_and_the_log_says_why(
    model: PreTrainedModel, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    computation = output_computation(model, TrainerConfig(logprob_chunk_tokens=4))
    assert computation == OutputComputation()
    assert [vars(line)["event_fields"]["reason"] for line in caplog.records] == [reason]


def test_a_layer_that_is_not_linear_cannot_be_in_float32() -> None:
    with pytest.raises(ConfigError, match="is a NoLinearLayer, not a linear layer"):
        output_computation(with_layer(NoLinearLayer()), TrainerConfig(output_layer_dtype="float32"))
