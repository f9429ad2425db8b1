"""Log-probabilities in chunks of tokens, held against autograd in float64 and against logits of all tokens at once."""
# ruff: noqa: N815 - tensors carry shape suffixes: N tokens, H hidden size, V vocabulary, K outputs

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch.nn.functional import linear

from trainer.model.output_layer import LogitTransform
from trainer.model.token_logprobs import LogprobSettings, token_logprobs

if TYPE_CHECKING:
    from torch import Tensor

num_tokens, hidden_size, vocabulary = 37, 8, 61
transforms = {
    "none": LogitTransform(),
    "scaled": LogitTransform(factor=0.0625),
    "divided": LogitTransform(divisor=6.0),
    "capped": LogitTransform(cap=3.0),
    "all": LogitTransform(factor=1.7, divisor=1.3, cap=5.0),
}


class Inputs(NamedTuple):
    """What both ways compute with, and what weighs their outputs in the loss."""

    hidden_NH: Tensor
    weight_VH: Tensor
    bias_V: Tensor | None
    target_N: Tensor
    pull_NK: Tensor

    def leaves(self, dtype: torch.dtype) -> list[Tensor]:
        found = (self.hidden_NH, self.weight_VH, self.bias_V)
        return [tensor.to(dtype, copy=True).requires_grad_() for tensor in found if tensor is not None]


class Found(NamedTuple):
    """Outputs (N, K), and gradients of hidden states, weight and bias."""

    outputs_NK: Tensor
    gradients: list[Tensor]


def inputs(*, with_bias: bool = False, num_outputs: int = 2, dtype: torch.dtype = torch.float64) -> Inputs:
    draw = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)

    return Inputs(
        hidden_NH=normal(num_tokens, hidden_size),
        weight_VH=normal(vocabulary, hidden_size),
        bias_V=normal(vocabulary) if with_bias else None,
        target_N=torch.randint(vocabulary, (num_tokens,), generator=draw),
        pull_NK=normal(num_tokens, num_outputs).to(torch.float64),
    )


def settings_of(
    chunk_tokens: int, *, transform: LogitTransform = transforms["none"], temperature: float = 0.7
) -> LogprobSettings:
    return LogprobSettings(
        chunk_tokens=chunk_tokens, temperature=temperature, transform=transform, with_entropy=True
    )


def in_chunks(given: Inputs, settings: LogprobSettings, dtype: torch.dtype) -> Found:
    leaves = given.leaves(dtype)
    bias_V = leaves[2] if given.bias_V is not None else None
    outputs_NK = token_logprobs(leaves[0], leaves[1], bias_V, given.target_N, settings)
    return found(outputs_NK, given, leaves)


def by_autograd(given: Inputs, settings: LogprobSettings, dtype: torch.dtype) -> Found:
    """Straight from the formulas, all at once."""
    leaves = given.leaves(dtype)
    logits_NV = linear(leaves[0], leaves[1], leaves[2] if given.bias_V is not None else None)
    transform = settings.transform
    logits_NV = logits_NV * (transform.factor or 1.0) / (transform.divisor or 1.0)
    if transform.cap is not None:
        logits_NV = transform.cap * torch.tanh(logits_NV / transform.cap)
    every_NV = torch.log_softmax(
        logits_NV.to(torch.promote_types(dtype, torch.float32)) / settings.temperature, 1
    )
    outputs_NK = torch.stack(
        [every_NV.gather(1, given.target_N[:, None])[:, 0], -(every_NV.exp() * every_NV).sum(dim=1)], dim=1
    )
    return found(outputs_NK, given, leaves)


def found(outputs_NK: Tensor, given: Inputs, leaves: list[Tensor]) -> Found:
    pull_NK = given.pull_NK.to(outputs_NK.dtype)
    gradients = torch.autograd.grad((outputs_NK * pull_NK[:, : outputs_NK.shape[1]]).sum(), leaves)
    return Found(outputs_NK.detach(), list(gradients))


def distance(one: Tensor, other: Tensor) -> float:
    """Relative to the size of `other`."""
    return float((one.double() - other.double()).norm() / other.double().norm())


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("transform", transforms.values(), ids=transforms.keys())
@pytest.mark.parametrize("chunk_tokens", [1, 10, num_tokens, 1000])
def test_values_and_gradients_are_those_of_autograd_in_float64(
    chunk_tokens: int, transform: LogitTransform, *, with_bias: bool
) -> None:
    given = inputs(with_bias=with_bias)
    settings = settings_of(chunk_tokens, transform=transform)
    ours, reference = (way(given, settings, torch.float64) for way in (in_chunks, by_autograd))
    torch.testing.assert_close(ours.outputs_NK, reference.outputs_NK, atol=1e-12, rtol=1e-12)
    for gradient, expected in zip(ours.gradients, reference.gradients, strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-12)


def test_without_entropy_there_is_one_output_and_the_same_log_probabilities() -> None:
    given = inputs()
    with_entropy = settings_of(10)
    alone = LogprobSettings(chunk_tokens=10, temperature=0.7, transform=LogitTransform())
    ours = in_chunks(given, alone, torch.float64)
    only_logprobs = given._replace(pull_NK=given.pull_NK * torch.tensor([1.0, 0.0]))
    reference = by_autograd(only_logprobs, with_entropy, torch.float64)
    assert ours.outputs_NK.shape == (num_tokens, 1)
    torch.testing.assert_close(ours.outputs_NK[:, 0], reference.outputs_NK[:, 0], atol=1e-12, rtol=1e-12)
    for gradient, expected in zip(ours.gradients, reference.gradients, strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transform", transforms.values(), ids=transforms.keys())
def test_it_is_as_exact_as_all_at_once(transform: LogitTransform, dtype: torch.dtype) -> None:
    given = inputs(dtype=dtype)
    settings = settings_of(10, transform=transform)
    exact = by_autograd(given, settings, torch.float64)
    ours, all_at_once = (way(given, settings, dtype) for way in (in_chunks, by_autograd))
    unit = torch.finfo(dtype).eps  # two in the last place is what a comparison of roundings allows for
    assert ours.outputs_NK.dtype == torch.float32
    pairs = zip(
        [ours.outputs_NK, *ours.gradients],
        [all_at_once.outputs_NK, *all_at_once.gradients],
        [exact.outputs_NK, *exact.gradients],
        strict=True,
    )
    for one, other, expected in pairs:
        assert one.dtype == other.dtype
        assert distance(one, expected) <= 1.2 * distance(other, expected) + 2 * unit


def test_float32_for_a_layer_in_bfloat16_takes_its_rounding_away() -> None:
    given = inputs(dtype=torch.bfloat16)
    narrow = settings_of(10)
    wide = LogprobSettings(
        chunk_tokens=10, temperature=0.7, transform=LogitTransform(), with_entropy=True, dtype=torch.float32
    )
    exact = by_autograd(given, narrow, torch.float64)
    found_wide, found_narrow = (in_chunks(given, settings, torch.bfloat16) for settings in (wide, narrow))
    assert distance(found_wide.outputs_NK, exact.outputs_NK) < 1e-5
    assert distance(found_narrow.outputs_NK, exact.outputs_NK) > 1e-4
    assert [gradient.dtype for gradient in found_wide.gradients] == [torch.bfloat16] * 2


def test_the_same_work_gives_the_same_bits() -> None:
    given = inputs(dtype=torch.bfloat16)
    first, second = (in_chunks(given, settings_of(10), torch.bfloat16) for _ in range(2))
    assert torch.equal(first.outputs_NK, second.outputs_NK)
    assert all(torch.equal(one, other) for one, other in zip(first.gradients, second.gradients, strict=True))


def test_no_tokens_give_no_outputs_and_gradients_of_zero() -> None:
    given = inputs()
    nothing = given._replace(
        hidden_NH=given.hidden_NH[:0], target_N=given.target_N[:0], pull_NK=given.pull_NK[:0]
    )
    ours = in_chunks(nothing, settings_of(10), torch.float64)
    assert ours.outputs_NK.shape == (0, 2)
    assert ours.gradients[1].abs().max() == 0


def test_logits_beyond_the_range_of_exp_are_no_trouble() -> None:
    given = inputs()
    large = given._replace(weight_VH=given.weight_VH * 1e3)
    ours, reference = (way(large, settings_of(10), torch.float64) for way in (in_chunks, by_autograd))
    torch.testing.assert_close(ours.outputs_NK, reference.outputs_NK, atol=1e-9, rtol=1e-12)
    for gradient, expected in zip(ours.gradients, reference.gradients, strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.slow
def test_memory_holds_at_most_one_and_a_half_chunks_of_logits() -> None:
    chunk_bytes = 1024 * 152_000 * 4
    assert peak_bytes(num_tokens=16_384, chunk_tokens=1024) <= 1.5 * chunk_bytes
    assert (
        peak_bytes(num_tokens=2048, chunk_tokens=2048) > 1.5 * chunk_bytes
    )  # the measure sees a larger chunk


def peak_bytes(*, num_tokens: int, chunk_tokens: int) -> int:
    """What a process of its own takes most, forward and backward, beyond what it has after a small pass of both."""
    done = subprocess.run(
        [sys.executable, "-c", _measured, str(num_tokens), str(chunk_tokens)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(json.loads(done.stdout)["peak_bytes"])


_measured = """
import json, re, sys
from pathlib import Path
import torch
from trainer.model.output_layer import LogitTransform
from trainer.model.token_logprobs import LogprobSettings, token_logprobs

torch.set_num_threads(2)
num_tokens, chunk_tokens = map(int, sys.argv[1:])
hidden = torch.randn(num_tokens, 4, requires_grad=True)
weight = torch.randn(152_000, 4, requires_grad=True)
target = torch.randint(152_000, (num_tokens,))

def status(key):
    return 1024 * int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1))

def both_passes(count, chunk):
    settings = LogprobSettings(
        chunk_tokens=chunk, temperature=0.9, transform=LogitTransform(cap=30.0), with_entropy=True
    )
    token_logprobs(hidden[:count], weight, None, target[:count], settings).sum().backward()

both_passes(8, 8)
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
both_passes(num_tokens, chunk_tokens)
print(json.dumps({"peak_bytes": status("VmHWM") - before}))
"""
