"""Packed rows attended to without a mask: what is computed is what a mask gives."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.small_training import a_batch, a_training_sample, make_model
from support.training_engines import step_settings, temperature
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen2Config

from rollog.settings.training import TrainerConfig
from trainer.engines.plain import PlainEngine
from trainer.model.packing_probe import check_packing
from trainer.model.policy import Policy, load_model
from trainer.model.preparation import prepare_policy
from trainer.model.varlen_attention import (
    Sequences,
    attend,
    attend_without_masks,
    attends_without_masks,
    keywords_of,
    sequences_of,
)
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

sizes: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


def reference_kernel(
    query_PHD: Tensor, key_PHD: Tensor, value_PHD: Tensor, begins: Tensor, *_: Any, **keywords: Any
) -> Tensor:
    """What `varlen_attn` computes, one sequence after another."""
    left, right = keywords["window_size"]
    assert right == 0
    parts = []
    for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        query, key, value = (
            tensor[begin:end].transpose(0, 1)[None] for tensor in (query_PHD, key_PHD, value_PHD)
        )
        rows = torch.arange(end - begin)
        distances = rows[:, None] - rows[None, :]
        seen = (distances >= 0) & ((distances <= left) if left >= 0 else True)
        parts.append(
            scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=keywords["scale"])[0]
        )
    return torch.cat([part.transpose(0, 1) for part in parts])


def under_a_mask(
    query: Tensor, key: Tensor, value: Tensor, positions_ST: Tensor, window: int | None
) -> Tensor:
    """Every pair of positions of a row is looked at: the same sample, not later, within the window."""
    samples_ST = (positions_ST == 0).cumsum(1)
    same = samples_ST[:, :, None] == samples_ST[:, None, :]
    distances = positions_ST[:, :, None] - positions_ST[:, None, :]
    seen = same & (distances >= 0)
    if window is not None:
        seen &= distances < window
    answered = scaled_dot_product_attention(
        query, key, value, attn_mask=seen[:, None], scale=0.3, enable_gqa=True
    )
    return answered.transpose(1, 2)


def test_sequences_begin_where_positions_do_also_padding() -> None:
    sequences = sequences_of(torch.tensor([[0, 1, 2, 3, 4], [0, 1, 0, 0, 1]]))
    assert sequences.begins.tolist() == [0, 5, 7, 8, 10]
    assert sequences.begins.dtype is torch.int32
    assert sequences.longest == 5


@pytest.mark.parametrize("window", [None, 1, 3])
def test_each_sample_attends_to_itself_alone_as_under_a_mask(window: int | None) -> None:
    positions_ST = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 0, 1]])
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 4, 7, 8, generator=generator, dtype=torch.float64)
    key, value = (torch.randn(2, 2, 7, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    attended = attend(
        query, key, value, sequences_of(positions_ST), scale=0.3, window=window, kernel=reference_kernel
    )
    torch.testing.assert_close(attended, under_a_mask(query, key, value, positions_ST, window))


def test_without_the_kernel_packed_rows_have_the_bits_that_a_mask_gives(tmp_path: Path) -> None:
    samples = [a_training_sample(seed, response_tokens=3 + seed) for seed in range(4)]
    batch = collate(samples, packing=True)
    path = make_model(tmp_path)
    masked, without = load_model(path, None, "float32"), load_model(path, None, "float32")
    assert attend_without_masks(without) is None
    found = [frozen_logprobs(Policy(model, 1.0), batch) for model in (masked, without)]
    assert not attends_without_masks(masked)
    assert attends_without_masks(without)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Gemma2Config(**sizes, head_dim=16), "softly"),
        (LlamaConfig(**(sizes | {"hidden_size": 1200})), "300 wide"),
    ],
)
def test_a_model_that_needs_more_than_the_kernel_computes_is_left_as_it_is(config: Any, reason: str) -> None:
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    found = attend_without_masks(model)
    assert found is not None
    assert reason in found
    assert not attends_without_masks(model)


@pytest.mark.parametrize(
    ("keys", "without"),
    [
        ({"packing": True}, True),
        ({"packing": True, "packed_attention": "masked"}, False),
        ({"packing": False}, False),
    ],
)
def test_settings_choose_for_the_policy_and_for_its_reference(
    tmp_path: Path, keys: dict[str, Any], *, without: bool
) -> None:
    prepared = prepare_policy(
        make_model(tmp_path),
        None,
        TrainerConfig(**keys),
        temperature=1.0,
        dtype="float32",
        with_value_head=False,
    )
    assert attends_without_masks(prepared.model) == without
    assert attends_without_masks(prepared.copy.policy(torch.device("cpu")).model) == without


def gpu_model(directory: Path, **further: Any) -> str:
    """A model in bfloat16 with heads of 64 and two groups of them."""
    config = Qwen2Config(
        **(sizes | {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 512}), **further
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    return str(directory)


def gpu_gradients(path: str, *, without: bool, packing: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities of response tokens (B, R), and all gradients of their sum."""
    model = load_model(path, None, "bfloat16")
    if without:
        assert attend_without_masks(model) is None
    policy = Policy(model, 1.0).cuda()
    samples = [a_training_sample(seed, response_tokens=40 + 150 * seed) for seed in (3, 2, 2, 1, 0, 0)]
    batch = collate(samples, packing=packing).to(torch.device("cuda"))
    logprobs_BR, _, _ = policy(
        batch.input_ids_ST,
        batch.source_N,
        batch.target_N,
        batch.response_N,
        batch.mask_BR,
        position_ids_ST=batch.position_ids_ST,
    )
    logprobs_BR.sum().backward()
    gradients = [parameter.grad.float().flatten() for parameter in policy.parameters()]  # type: ignore[union-attr]
    return logprobs_BR.detach(), torch.cat(gradients)


def off_by(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference by that of what is expected."""
    return float((found - expected).norm() / expected.norm())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "further", [{}, {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 0}]
)
def test_on_a_gpu_values_and_gradients_are_as_near_to_those_of_padded_rows_as_a_mask_s(
    tmp_path: Path, further: dict[str, Any]
) -> None:
    path = gpu_model(tmp_path, **further)
    values, gradients = gpu_gradients(path, without=False, packing=False)
    masked = gpu_gradients(path, without=False, packing=True)
    without = gpu_gradients(path, without=True, packing=True)
    print(  # noqa: T201 - the figures of a run on a GPU
        f"values {off_by(without[0], values):.2e}, masked {off_by(masked[0], values):.2e}; gradients "
        f"{off_by(without[1], gradients):.2e}, masked {off_by(masked[1], gradients):.2e}"
    )
    assert off_by(without[0], values) <= 2 * off_by(masked[0], values) + 1e-3
    assert off_by(without[1], gradients) <= 2 * off_by(masked[1], gradients) + 1e-3


@pytest.mark.gpu
def test_on_a_gpu_the_same_work_gives_the_same_bits(tmp_path: Path) -> None:
    path = gpu_model(tmp_path)
    prepare = TrainerConfig(packing=True)
    prepare_policy(path, None, prepare, temperature=1.0, dtype="bfloat16", with_value_head=False)
    first, second = (gpu_gradients(path, without=True, packing=True) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.gpu
def test_on_a_gpu_samples_of_a_row_are_kept_apart(tmp_path: Path) -> None:
    model = load_model(gpu_model(tmp_path), None, "bfloat16")
    assert attend_without_masks(model) is None
    check_packing(Policy(model, 1.0).cuda())


@pytest.mark.gpu
def test_on_a_gpu_an_engine_takes_the_steps_that_it_takes_with_masks(tmp_path: Path) -> None:
    path = gpu_model(tmp_path)
    losses = {}
    for attention in ("masked", "varlen"):
        trainer = TrainerConfig(packing=True, packed_attention=attention, num_minibatches=2)
        engine = PlainEngine(
            settings=step_settings, trainer=trainer, temperature=temperature, dtype="bfloat16"
        )
        with closing(engine):
            engine.start(path)
            losses[attention] = [
                loss for seed in range(3) for loss in engine.train_step(a_batch(seed, packing=True)).losses
            ]
    assert losses["varlen"] == pytest.approx(losses["masked"], abs=0.02)


def attention_memory(*, width: int, without: bool) -> int:
    """Bytes that attention over four packed rows of `width` positions takes beyond its arguments and its answer."""
    query, key, value = (
        torch.randn(4, heads, width, 64, device="cuda", dtype=torch.bfloat16) for heads in (8, 8, 8)
    )
    positions_ST = torch.arange(width, device="cuda").remainder(width // 4).expand(4, width)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    if without:
        attend(query, key, value, sequences_of(positions_ST), scale=None, window=None)
    else:
        samples_ST = (positions_ST == 0).cumsum(1)
        seen = (samples_ST[:, :, None] == samples_ST[:, None, :]).tril()
        scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None])
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.gpu
def test_on_a_gpu_memory_does_not_grow_with_the_square_of_a_row() -> None:
    growth = attention_memory(width=8192, without=True) / attention_memory(width=2048, without=True)
    masked = attention_memory(width=8192, without=False) / attention_memory(width=2048, without=False)
    print(f"four times as wide: {growth:.1f} times without a mask, {masked:.1f} times with")  # noqa: T201
    assert growth < 5 < masked


def test_keywords_are_those_that_transformers_hands_to_its_kernels() -> None:
    keywords = keywords_of(torch.tensor([[0, 1, 0]]))
    assert keywords["cu_seq_lens_q"].tolist() == [0, 2, 3]
    assert keywords["max_length_q"] == 2
    assert isinstance(sequences_of(torch.tensor([[0]])), Sequences)
