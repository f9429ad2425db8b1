"""When differences of log-probabilities are noise, and when they are not."""

from __future__ import annotations

import numpy as np
import pytest

from consumers.verification.rule import (
    Tolerances,
    compare_fit,
    fits,
    is_group_off,
    is_sample_off,
    num_beyond,
    smallest_bfloat16_noise,
)

fixed = Tolerances.fixed(1e-3)
coarse = Tolerances.of_noise(0.01)


def long_tailed_noise(draw: np.random.Generator, num_tokens: int, rms: float) -> np.ndarray:
    """Most tokens are all but certain and have no noise; the largest of thousands is 20 to 40 times the rms."""
    noise = draw.standard_t(3, num_tokens) * (draw.random(num_tokens) < 0.3)
    return np.asarray(noise * rms / np.sqrt(np.mean(noise**2)))


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_token_beyond_tolerance_counts_on_both_sides_of_zero(sign: int) -> None:
    differences = sign * np.array([0.0, 0.0009, 0.0011, 0.5])
    assert num_beyond(differences, fixed) == 2
    assert is_sample_off(differences, fixed)


def test_the_tolerance_itself_is_within() -> None:
    assert not is_sample_off(np.array([1e-3, -1e-3]), fixed)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_off(value: float) -> None:
    assert is_sample_off(np.array([0.0, value]), fixed)
    assert is_sample_off(np.array([0.0, value]), coarse)
    assert is_group_off(1000, value, value, coarse)


def test_with_long_tails_one_far_token_is_noise_and_a_quarter_of_a_sample_is_not() -> None:
    differences = np.zeros(12)
    differences[0] = 0.3
    assert not is_sample_off(differences, coarse)
    differences[:3] = -0.3
    assert not is_sample_off(differences, coarse)
    differences[:4] = -0.3
    assert is_sample_off(differences, coarse)


def test_with_long_tails_a_token_of_its_own_is_off_where_no_noise_goes() -> None:
    assert is_sample_off(np.array([0.0] * 30 + [-1.01]), coarse)


def test_of_a_single_token_within_the_reach_of_noise_nothing_is_said() -> None:
    assert not is_sample_off(np.array([0.3]), coarse)


@pytest.mark.parametrize("seed", range(10))
def test_noise_of_bfloat16_passes(seed: int) -> None:
    draw = np.random.default_rng(seed)
    noise = long_tailed_noise(draw, 20_000, 0.01)
    assert num_beyond(noise, coarse) > 0
    assert not any(is_sample_off(sample, coarse) for sample in noise.reshape(-1, 10))
    assert not is_group_off(len(noise), float(noise.mean()), float(np.abs(noise).mean()), coarse)


@pytest.mark.parametrize("seed", range(10))
def test_differences_on_one_side_are_no_noise_however_small(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for shift in (-0.008, 0.008):
        shifted = long_tailed_noise(draw, 2000, 0.01) + shift
        assert is_group_off(len(shifted), float(shifted.mean()), float(np.abs(shifted).mean()), coarse)


def test_of_few_tokens_a_group_is_not_judged_by_its_mean() -> None:
    assert not is_group_off(199, 0.1, 0.1, fixed)
    assert is_group_off(200, 0.1, 0.1, fixed)


@pytest.mark.parametrize("seed", range(10))
def test_other_weights_that_explain_the_values_are_found_under_noise(seed: int) -> None:
    draw = np.random.default_rng(seed)
    noise = long_tailed_noise(draw, 512, 0.01)
    moved = noise + 0.06 * draw.standard_normal(512)
    fit = compare_fit(own=moved, other=noise)
    assert fit.is_better(coarse)
    back = compare_fit(own=noise, other=moved)
    assert not back.is_better(coarse)
    assert back.is_told_apart(coarse)


@pytest.mark.parametrize("seed", range(20))
def test_weights_that_hardly_differ_are_no_better_explanation(seed: int) -> None:
    draw = np.random.default_rng(seed)
    own, other = (long_tailed_noise(draw, 512, 0.01) for _ in range(2))
    fit = compare_fit(own=own, other=other)
    assert not fit.is_better(coarse)
    assert not fit.is_told_apart(coarse)


def test_the_same_weights_under_another_version_are_no_better_explanation() -> None:
    noise = np.full(100, 1e-7)
    fit = compare_fit(own=noise, other=noise)
    assert (fit.is_better(fixed), fit.is_told_apart(fixed)) == (False, False)


def test_noise_in_the_last_bits_is_no_sign_of_other_weights() -> None:
    fit = compare_fit(own=np.full(100, 1e-6), other=np.zeros(100))
    assert not fit.is_better(fixed)


def test_a_sample_fits_other_weights_where_nearly_all_its_tokens_do() -> None:
    assert fits(np.array([1e-6] * 20), fixed)
    assert not fits(np.array([1e-6] * 19 + [0.1]), fixed)
    assert not fits(np.array([0.0] * 8 + [0.2, 0.2]), coarse)


def test_a_probe_that_shows_no_noise_is_not_believed() -> None:
    assert Tolerances.of_noise(0.0) == Tolerances.of_noise(smallest_bfloat16_noise)
