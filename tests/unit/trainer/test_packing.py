"""Samples that share rows: nothing of the result may depend on it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_training import NaiveEngine, a_batch, a_training_sample, make_model
from support.step_engine import DescentEngine
from torch import Tensor, nn

from rollog.kernel.errors import DataError
from rollog.settings.training import AlgorithmConfig
from schemas import MicroBatch
from trainer.model.packing_probe import check_packing
from trainer.model.policy import Policy, load_model
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs
from trainer.step.gradients import accumulate_gradients
from trainer.step.minibatches import rank_minibatches
from trainer.step.old_logprobs import old_and_reference_logprobs
from trainer.step.packing import num_padded_tokens, pack_rows
from trainer.step.planning import padding_share, plan_step

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.step.ports import TrainingBatch


def test_a_sample_goes_into_the_first_row_that_has_room() -> None:
    assert pack_rows([8, 5, 4, 3, 3, 1], 8) == [[0], [1, 3], [2, 4, 5]]
    assert pack_rows([8, 5, 4, 3, 3, 1], 8, max_rows=2) == [[0], [1, 3]]
    assert pack_rows([9], 8) == [[0]]
    assert pack_rows([], 8) == []


def test_padded_tokens_are_counted_with_and_without_packing() -> None:
    assert num_padded_tokens([8, 5, 3], packing=False) == 24
    assert num_padded_tokens([8, 5, 3], packing=True) == 16
    assert num_padded_tokens([], packing=True) == 0


lengths = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=12)


@given(lengths, st.integers(1, 4), st.integers(1, 4), st.integers(1, 120), st.integers(0, 2**63 - 1))
def test_a_packed_plan_names_every_sample_once_within_bounds_and_never_needs_more(
    group_lengths: list[list[int]], num_minibatches: int, world_size: int, tokens: int, seed: int
) -> None:
    flat = [length for group in group_lengths for length in group]
    plans = {
        packing: plan_step(
            group_lengths,
            num_minibatches=num_minibatches,
            world_size=world_size,
            micro_batch_tokens=tokens,
            seed=seed,
            packing=packing,
        )
        for packing in (False, True)
    }
    packed = plans[True]
    assert sorted(position for part in packed for position in part.positions) == list(range(len(flat)))
    for part in packed:
        own = [flat[position] for position in part.positions]
        assert num_padded_tokens(own, packing=True) <= tokens or len(own) <= 1 or max(own) > tokens
        assert own == sorted(own, reverse=True)
    counts = Counter((part.minibatch, part.rank) for part in packed)
    for minibatch in {part.minibatch for part in packed}:
        assert len({counts[(minibatch, rank)] for rank in range(world_size)}) == 1
    if world_size == 1:
        assert len(packed) <= len(plans[False])


def test_packing_takes_more_samples_into_a_micro_batch_and_leaves_less_padding() -> None:
    group_lengths = [[10, 1, 1, 1, 9, 1, 5, 5]]
    flat = group_lengths[0]
    shares = {
        packing: padding_share(
            plan_step(
                group_lengths, num_minibatches=1, world_size=1, micro_batch_tokens=20, seed=0, packing=packing
            ),
            flat,
            packing=packing,
        )
        for packing in (False, True)
    }
    assert shares[True] < shares[False]


def test_packed_rows_hold_samples_one_after_another_and_positions_restart() -> None:
    first = a_training_sample(1, prompt_tokens=3, response_tokens=4)
    second = a_training_sample(2, prompt_tokens=1, response_tokens=2, mask=[1, 0])
    third = a_training_sample(3, prompt_tokens=2, response_tokens=1)
    batch = collate([first, second, third], packing=True, pad_token_id=9)
    assert batch.input_ids_ST.tolist() == [
        [*first.prompt_token_ids, *first.token_ids],
        [*second.prompt_token_ids, *second.token_ids, *third.prompt_token_ids, *third.token_ids, 9],
    ]
    assert batch.position_ids_ST is not None
    assert batch.position_ids_ST.tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 2, 0]]
    assert batch.source_N.tolist() == [2, 3, 4, 5, 7, 11]
    assert batch.target_N.tolist() == [*first.token_ids, second.token_ids[0], third.token_ids[0]]
    assert batch.response_N.tolist() == [0, 1, 2, 3, 4, 8]
    assert batch.mask_BR.tolist() == [[True] * 4, [True, False, False, False], [True, False, False, False]]


def test_no_samples_make_a_packed_micro_batch_that_trains_nothing() -> None:
    batch = collate([], packing=True)
    assert batch.input_ids_ST.shape == (1, 1)
    assert batch.position_ids_ST is not None
    assert not batch.mask_BR.any()


def packed_batch(seed: int, micro_batch_tokens: int = 60) -> TrainingBatch:
    batch = a_batch(seed, num_groups=5, num_minibatches=1)
    plan = plan_step(
        [[sample.num_tokens] for sample in batch.samples],
        num_minibatches=1,
        world_size=1,
        micro_batch_tokens=micro_batch_tokens,
        seed=seed,
        packing=True,
    )
    return type(batch)(samples=batch.samples, plan=plan)


@pytest.mark.engine
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_logprobs_are_those_of_each_sample_alone(tmp_path: Path, temperature: float) -> None:
    path = make_model(tmp_path)
    naive = NaiveEngine(temperature=temperature)
    naive.start(path)
    policy = Policy(load_model(path, None, "float32"), temperature)
    batch = packed_batch(3)
    shares = []
    for part in batch.plan:
        samples = [batch.samples[position] for position in part.positions]
        collated = collate(samples, packing=True)
        shares.append(collated.input_ids_ST.shape[0] < len(samples))
        logprobs_BR = frozen_logprobs(policy, collated)
        padded_BR = frozen_logprobs(policy, collate(samples))
        torch.testing.assert_close(logprobs_BR, padded_BR, atol=1e-5, rtol=1e-5)
        for row, sample in enumerate(samples):
            expected = naive.logprobs(sample)
            torch.testing.assert_close(logprobs_BR[row, : len(expected)], expected, atol=1e-5, rtol=1e-5)
    assert any(shares)


def gradient(path: str, batch: TrainingBatch, algorithm: AlgorithmConfig, *, packing: bool) -> list[Tensor]:
    policy = Policy(load_model(path, None, "float32"), 1.0)
    reference = Policy(load_model(path, None, "float32"), 1.0)
    engine = DescentEngine(policy, reference, packing=packing)
    fixed_logprobs = old_and_reference_logprobs(batch, engine, algorithm)
    for minibatch in rank_minibatches(batch, 0, algorithm):
        accumulate_gradients(minibatch, batch, fixed_logprobs, engine, algorithm)
    found = [parameter.grad for parameter in policy.parameters()]
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


@pytest.mark.engine
@pytest.mark.parametrize(
    "changed",
    [{}, {"type": "tis", "kl_coefficient": 0.3}, {"type": "gspo"}, {"entropy_coefficient": 0.1}],
    ids=["default", "tis-kl", "gspo", "entropy"],
)
def test_the_gradient_is_that_of_padded_samples(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = make_model(tmp_path)
    algorithm = AlgorithmConfig(**changed, max_response_tokens=8)
    batch = packed_batch(5)
    padded = gradient(path, batch, algorithm, packing=False)
    packed = gradient(path, batch, algorithm, packing=True)
    largest = max(float(each.abs().max()) for each in padded)
    assert largest > 1e-3
    for one, other in zip(padded, packed, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-5)


@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_keeps_samples_apart_passes_the_probe(tmp_path: Path, dtype: str) -> None:
    check_packing(Policy(load_model(make_model(tmp_path), None, dtype), 0.8))


class Unheeding(nn.Module):
    """A model that is told of positions and does without them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def get_input_embeddings(self) -> nn.Module:
        found: nn.Module = self.inner.get_input_embeddings()
        return found

    def get_output_embeddings(self) -> nn.Module:
        found: nn.Module = self.inner.get_output_embeddings()
        return found

    def forward(self, input_ids: Tensor, *, use_cache: bool, **_: object) -> Any:
        return self.inner(input_ids=input_ids, use_cache=use_cache)


class Leaking(Unheeding):
    """A model that counts positions anew, and attends to the neighbour all the same."""

    def forward(self, input_ids: Tensor, *, use_cache: bool, **options: Any) -> Any:
        if "position_ids" not in options:
            return super().forward(input_ids, use_cache=use_cache)
        mask = torch.full((1, 1, input_ids.shape[1], input_ids.shape[1]), -18.0).triu(1) * 1e6
        return self.inner(input_ids=input_ids, use_cache=use_cache, attention_mask=mask, **options)


class WithoutPositions(Unheeding):
    def forward(self, input_ids: Tensor, *, use_cache: bool) -> Any:  # type: ignore[override]
        return super().forward(input_ids, use_cache=use_cache)


@pytest.mark.engine
@pytest.mark.parametrize("kind", [Unheeding, Leaking, WithoutPositions])
def test_a_model_that_does_not_keep_them_apart_is_refused(tmp_path: Path, kind: type[Unheeding]) -> None:
    model = kind(load_model(make_model(tmp_path), None, "float32"))
    with pytest.raises(DataError, match=r"packing = true: .* does not keep samples .*packing = false"):
        check_packing(Policy(model, 1.0))  # type: ignore[arg-type]


def test_an_empty_micro_batch_counts_for_nothing() -> None:
    plan = [MicroBatch(minibatch=0, rank=0, positions=(0, 1)), MicroBatch(minibatch=0, rank=1, positions=())]
    assert padding_share(plan, [4, 2], packing=True) == pytest.approx(0.25)
