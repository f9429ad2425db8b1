"""Off-policy statistics."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.step.losses.policy import Tokens, clipped_losses
from trainer.step.off_policy import RatioSums, finite, ratio_sums, step_statistics


def sums_of(
    ratios: list[list[float]],
    advantages: list[float],
    mask: list[list[bool]],
    lags: list[list[int]] | None = None,
) -> RatioSums:
    tokens = Tokens(
        logprobs_BR=torch.tensor(ratios, dtype=torch.float64).log(),
        behaviour_logprobs_BR=torch.zeros(len(ratios), len(ratios[0]), dtype=torch.float64),
        advantages_BR=torch.tensor(advantages, dtype=torch.float64)[:, None],
        mask_BR=torch.tensor(mask),
    )
    losses = clipped_losses(tokens, clip_low=0.2, clip_high=0.28)
    return ratio_sums(
        tokens.log_ratios(),
        tokens.mask_BR,
        losses.clipped_BR,
        lags_BR=None if lags is None else torch.tensor(lags),
    )


def test_on_policy_everything_is_one_and_nothing_diverges() -> None:
    summary = sums_of([[1.0, 1.0]], [3.0], [[True, True]]).summary()
    assert summary == pytest.approx(
        {
            "ratio_mean": 1.0,
            "ratio_max": 1.0,
            "clip_fraction": 0.0,
            "extreme_fraction": 0.0,
            "divergence": 0.0,
            "divergence_k1": 0.0,
            "divergence_k2": 0.0,
            "effective_sample_size": 1.0,
        }
    )


def test_figures_by_hand() -> None:
    sums = sums_of([[2.0, 0.5], [0.5, 9.0]], [1.0, -1.0], [[True, True], [True, False]])
    summary = sums.summary()
    assert summary["ratio_mean"] == pytest.approx(1.0)
    assert summary["ratio_max"] == pytest.approx(2.0)
    assert summary["clip_fraction"] == pytest.approx(2 / 3)
    assert summary["divergence"] == pytest.approx((1 - math.log(2) + 2 * (-0.5 + math.log(2))) / 3)
    assert summary["divergence_k1"] == pytest.approx(math.log(2) / 3)
    assert summary["divergence_k2"] == pytest.approx(math.log(2) ** 2 / 2)
    assert summary["effective_sample_size"] == pytest.approx(9 / (3 * 4.5))
    assert sums.log_ratio_max == pytest.approx(math.log(2))


def test_sums_of_parts_add_up_to_the_sums_of_the_whole() -> None:
    ratios, advantages, mask = [[2.0, 0.5], [0.7, 1.4]], [1.0, -1.0], [[True, True], [True, True]]
    whole = sums_of(ratios, advantages, mask)
    parts = sums_of(ratios[:1], advantages[:1], mask[:1]) + sums_of(ratios[1:], advantages[1:], mask[1:])
    assert parts.summary() == pytest.approx(whole.summary())
    assert parts.log_ratio_max == whole.log_ratio_max


def test_without_a_trained_token_there_is_nothing_to_say() -> None:
    assert sums_of([[1.0]], [1.0], [[False]]).summary() == {}


def test_how_far_off_policy_a_batch_is_is_taken_from_the_first_minibatch_alone() -> None:
    first = sums_of([[2.0, 0.5]], [1.0], [[True, True]])
    later = sums_of([[9.0, 3.0]], [1.0], [[True, True]])
    statistics = step_statistics([first, later])
    assert statistics["first_effective_sample_size"] == pytest.approx(2.5**2 / (2 * 4.25))
    assert statistics["first_divergence"] == pytest.approx(0.25)
    assert statistics["first_log_ratio_max"] == pytest.approx(math.log(2))
    assert statistics["divergence"] > 1


def test_a_first_minibatch_without_a_trained_token_measures_nothing() -> None:
    empty = sums_of([[1.0]], [1.0], [[False]])
    statistics = step_statistics([empty, sums_of([[2.0]], [1.0], [[True]])])
    assert not {"first_effective_sample_size", "first_divergence"} & statistics.keys()
    assert "divergence" in statistics


def test_what_the_current_version_generated_tells_numerics_from_staleness() -> None:
    sums = sums_of([[2.0, 0.5, 4.0]], [1.0], [[True, True, True]], [[0, 1, 2]])
    assert sums.mismatch() == pytest.approx(
        {
            "stale_fraction": 2 / 3,
            "mismatch_divergence": 1 - math.log(2),
            "mismatch_log_ratio_max": math.log(2),
            "stale_divergence": ((-0.5 + math.log(2)) + (3 - math.log(4))) / 2,
        }
    )
    assert step_statistics([sums]).items() >= sums.mismatch().items()


def test_without_versions_nothing_is_told_apart() -> None:
    assert sums_of([[2.0]], [1.0], [[True]]).mismatch() == {}


def test_on_policy_batches_have_no_stale_divergence() -> None:
    figures = sums_of([[2.0]], [1.0], [[True]], [[0]]).mismatch()
    assert figures["stale_fraction"] == 0.0
    assert "stale_divergence" not in figures


def test_a_figure_that_one_part_lacks_is_that_of_the_other() -> None:
    total = RatioSums(num_tokens=1, ratio=1.0, ratio_squared=1.0) + RatioSums(
        num_tokens=1, ratio=1.0, ratio_squared=1.0, entropy=3.0
    )
    assert total.entropy == 3.0
    assert "reference_divergence" not in total.summary()


def test_only_finite_figures_go_into_a_record() -> None:
    assert finite({"a": 1.0, "b": math.nan, "c": math.inf}) == {"a": 1.0}


@pytest.mark.parametrize(
    "sums",
    [
        RatioSums(),
        RatioSums(num_tokens=2**40 + 1, ratio=1 / 3, num_clipped=7, entropy=0.0, value_loss=math.nan),
        RatioSums(num_tokens=1, log_ratio=-0.1, reference_divergence=5e-324),
    ],
)
def test_sums_come_through_numbers_bit_for_bit(sums: RatioSums) -> None:
    numbers = sums.to_numbers()
    again = RatioSums.of_numbers(numbers)
    assert repr(again) == repr(sums)
    assert len(numbers) == len(RatioSums().to_numbers())
