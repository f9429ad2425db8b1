"""Which alpha is in force at which step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import LedgerBuilder, freshness_config

from rollog.rules.alpha_control import TakenStep, alpha_of_step, controlled, is_barrier, may_become_fresh
from schemas import StepTimings

if TYPE_CHECKING:
    from rollog.settings.groups import FreshnessConfig


def auto(**changes: Any) -> FreshnessConfig:
    """Raised from a tenth of waiting on; lowered below an ESS of 0.5 or above a divergence of 0.2."""
    values: dict[str, Any] = {
        "alpha": "auto",
        "auto_step": 0.5,
        "auto_max": 3.0,
        "auto_min_effective_sample_size": 0.5,
        "auto_max_divergence": 0.2,
    }
    return freshness_config(**(values | changes))


def a_step(number: int = 2, **changes: Any) -> TakenStep:
    """A step with alpha 1 that did not wait and was on policy."""
    values: dict[str, Any] = {
        "alpha": 1.0,
        "wait_share": 0.0,
        "effective_sample_size": 1.0,
        "divergence": 0.0,
    }
    return TakenStep(number=number, **(values | changes))


def alphas(freshness: FreshnessConfig, num_steps: int) -> list[float]:
    return [alpha_of_step(number, (), freshness) for number in range(1, num_steps + 1)]


def test_a_number_is_in_force_at_every_step() -> None:
    assert alphas(freshness_config(alpha=1.5), 3) == [1.5, 1.5, 1.5]


def test_a_schedule_names_the_version_from_which_on_a_value_is_in_force() -> None:
    freshness = freshness_config(alpha=((0, 0.0), (2, 2.0), (5, 0.5)))
    assert alphas(freshness, 7) == [0.0, 0.0, 2.0, 2.0, 2.0, 0.5, 0.5]


def test_every_nth_step_is_a_barrier() -> None:
    freshness = freshness_config(alpha=((0, 1.0), (4, 2.0)), barrier_every_steps=3)
    assert alphas(freshness, 7) == [1.0, 1.0, 0.0, 1.0, 2.0, 0.0, 2.0]


def test_the_control_begins_with_its_first_value_and_goes_on_from_the_ledger() -> None:
    assert alpha_of_step(1, (), auto(auto_start=0.75)) == 0.75
    assert alpha_of_step(3, (a_step(1), a_step(2, wait_share=0.5)), auto()) == 1.5


def test_a_barrier_is_neither_measured_nor_remembered_as_a_value() -> None:
    freshness = auto(barrier_every_steps=3)
    before, barrier = a_step(2, alpha=2.0, wait_share=0.5), a_step(3, alpha=0.0, wait_share=0.9)
    assert alpha_of_step(3, (a_step(1), before), freshness) == 0.0
    assert alpha_of_step(4, (before, barrier), freshness) == 2.5


def test_with_a_barrier_every_other_step_the_control_still_moves() -> None:
    freshness = auto(barrier_every_steps=2)
    taken = (a_step(3, wait_share=0.5), a_step(4, alpha=0.0))
    assert alpha_of_step(5, taken, freshness) == 1.5


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (a_step(wait_share=0.1), 1.5),
        (a_step(wait_share=0.09), 1.0),
        (a_step(wait_share=0.5, divergence=0.11), 1.0),
        (a_step(wait_share=0.5, effective_sample_size=0.74), 1.0),
        (a_step(wait_share=0.5, effective_sample_size=0.76, divergence=0.09), 1.5),
        (a_step(wait_share=0.5, divergence=0.21), 0.5),
        (a_step(effective_sample_size=0.49), 0.5),
        (a_step(effective_sample_size=0.5, divergence=0.2), 1.0),
        (a_step(wait_share=0.5, effective_sample_size=None, divergence=None), 1.0),
        (a_step(wait_share=0.5, effective_sample_size=None), 1.5),
        (a_step(1, wait_share=1.0), 1.0),
        (a_step(1, divergence=0.3), 0.5),
        (a_step(alpha=3.0, wait_share=0.5), 3.0),
        (a_step(alpha=0.25, divergence=0.3), 0.0),
        (a_step(alpha=7.0), 3.0),
    ],
)
def test_waiting_raises_off_policyness_lowers_and_in_between_alpha_stays(
    step: TakenStep, expected: float
) -> None:
    assert controlled([step], auto()) == expected


def test_after_a_step_that_was_too_far_off_policy_the_next_one_does_not_raise() -> None:
    far, lucky = a_step(2, divergence=0.3), a_step(3, wait_share=1.0)
    assert controlled([far, lucky], auto()) == 1.0
    assert controlled([a_step(2), lucky], auto()) == 1.5
    assert controlled([a_step(2, effective_sample_size=None, divergence=None), lucky], auto()) == 1.5


def test_decimal_steps_add_up_exactly() -> None:
    freshness = auto(auto_start=0.0, auto_step=0.1)
    alpha = 0.0
    for _ in range(7):
        alpha = controlled([a_step(alpha=alpha, wait_share=1.0)], freshness)
    assert alpha == 0.7


shares = st.floats(0, 1)
steps = st.builds(
    TakenStep,
    number=st.integers(1, 50),
    alpha=st.floats(0, 9),
    wait_share=shares,
    effective_sample_size=st.none() | st.floats(0.001, 1.001),
    divergence=st.none() | st.floats(0, 2),
)
configs = st.builds(
    lambda bounds, step, headroom, wait: auto(
        auto_min=min(bounds),
        auto_start=sorted(bounds)[1],
        auto_max=max(bounds),
        auto_step=step,
        auto_headroom=headroom,
        auto_wait_share=wait,
    ),
    st.tuples(*[st.floats(0, 9)] * 3),
    st.sampled_from([0.1, 0.25, 1.0, 20.0]),
    shares,
    shares,
)


@given(earlier=steps, step=steps, freshness=configs)
def test_alpha_never_leaves_its_bounds_and_moves_by_one_step_at_most(
    earlier: TakenStep, step: TakenStep, freshness: FreshnessConfig
) -> None:
    moved = controlled([earlier, step], freshness)
    assert freshness.auto_min <= moved <= freshness.auto_max
    if freshness.auto_min <= step.alpha <= freshness.auto_max:
        assert abs(moved - step.alpha) <= freshness.auto_step * (1 + 1e-9)


def worse(step: TakenStep, factors: tuple[float, float, float, float]) -> TakenStep:
    """The same step with a lower alpha, less waiting and further off policy."""
    lower, waited, lost, diverged = factors
    effective, divergence = step.effective_sample_size, step.divergence
    return replace(
        step,
        alpha=step.alpha * lower,
        wait_share=step.wait_share * waited,
        effective_sample_size=None if effective is None else effective * lost,
        divergence=None if divergence is None else divergence * diverged,
    )


factors = st.tuples(shares, shares, shares, st.floats(1, 3))


@given(taken=st.tuples(steps, steps), freshness=configs, changes=st.tuples(factors, factors))
def test_less_waiting_or_more_off_policyness_never_gives_a_higher_alpha(
    taken: tuple[TakenStep, TakenStep],
    freshness: FreshnessConfig,
    changes: tuple[tuple[float, float, float, float], tuple[float, float, float, float]],
) -> None:
    other = [worse(step, change) for step, change in zip(taken, changes, strict=True)]
    assert controlled(other, freshness) <= controlled(taken, freshness)


@given(number=st.integers(1, 40), taken=st.lists(steps, max_size=2), freshness=configs)
def test_what_was_measured_at_barriers_changes_nothing(
    number: int, taken: list[TakenStep], freshness: FreshnessConfig
) -> None:
    barriers = freshness.model_copy(update={"barrier_every_steps": 4})
    free = [step for step in taken if not is_barrier(step.number, barriers)]
    assert alpha_of_step(number, taken, barriers) == alpha_of_step(number, free, barriers)


def test_the_ledger_remembers_of_the_newest_two_steps_what_the_control_needs() -> None:
    ledger = LedgerBuilder(alpha=2.0)
    ledger.step()
    ledger.step(
        alpha=0.5,
        statistics={"first_effective_sample_size": 0.75, "first_divergence": 0.125, "divergence": 9.0},
        timings=StepTimings(wait_seconds=3.0, train_seconds=0.5, publish_seconds=0.5, commit_seconds=9.0),
    )
    ledger.verdicts()
    ledger.step()
    assert ledger.state.taken_steps == (
        TakenStep(number=2, alpha=2.0, wait_share=0.75, effective_sample_size=0.75, divergence=0.125),
        TakenStep(number=3, alpha=0.5, wait_share=0.0, effective_sample_size=None, divergence=None),
    )


@pytest.mark.parametrize(
    ("freshness", "first_version", "version", "expected"),
    [
        ({"alpha": 1.0}, 3, 5, False),
        ({"alpha": 2.0, "barrier_every_steps": 4}, 2, 3, True),
        ({"alpha": 2.0, "barrier_every_steps": 4}, 1, 3, False),
        ({"alpha": ((0, 0.0), (5, 3.0))}, 3, 4, True),
        ({"alpha": ((0, 0.0), (5, 3.0))}, 1, 4, False),
        ({"alpha": ((0, 3.0), (5, 0.0))}, 4, 5, False),
        ({"alpha": "auto", "auto_max": 2.0}, 3, 4, True),
        ({"alpha": "auto", "auto_max": 2.0}, 2, 4, False),
        ({"alpha": 0.5}, 4, 4, True),
    ],
)
def test_a_rollout_may_become_fresh_again_only_where_alpha_rises_enough(
    freshness: dict[str, Any], first_version: int, version: int, *, expected: bool
) -> None:
    assert may_become_fresh(first_version, version, freshness_config(**freshness)) == expected
