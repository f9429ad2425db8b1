"""How the use of an engine's slots is measured."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.harness.verdicts import judged_verdict
from benchmarks.scheduling.ideal import ideal_seconds
from benchmarks.scheduling.run_result import RunResult
from benchmarks.scheduling.scoring import busy_share, reward_seconds, scoring_comparisons, scoring_figures


def test_slots_are_busy_between_the_warm_up_and_the_beginning_of_the_last_rollout() -> None:
    # Two slots from 1 to 9: the first is filled, the second from 5 on. What ends later is not looked at.
    generated = [(0.0, 9.0), (5.0, 9.0), (9.0, 20.0)]
    assert busy_share(generated, num_slots=2, warm_up_seconds=1.0) == (8.0 + 4.0) / (2 * 8.0)


def test_too_few_rollouts_are_refused() -> None:
    with pytest.raises(ValueError, match="make more of them"):
        busy_share([(0.0, 3.0), (0.5, 4.0)], num_slots=2, warm_up_seconds=1.0)


def test_only_the_share_with_the_judge_has_a_target() -> None:
    (comparison,) = scoring_comparisons(2)
    results = {
        variant.name: {0: RunResult(seconds=1.0, ideal_seconds=1.0, num_tasks=1, busy_share=share)}
        for variant, share in ((comparison.baseline, 0.99), (comparison.mode, 0.97))
    }
    with_judge, without = scoring_figures([comparison], results)
    assert (with_judge.name, with_judge.value, with_judge.target) == (
        "scoring.reward_10_s.busy_slots",
        0.97,
        0.95,
    )
    assert (without.name, without.value, without.target) == ("scoring.reward_0_s.busy_slots", 0.99, None)
    assert scoring_figures([comparison], {}) == []


def test_a_judge_holds_the_ideal_batch_up_by_one_reward() -> None:
    (comparison,) = scoring_comparisons(1)
    seconds = [
        ideal_seconds(variant, variant.workload(0, 0)) for variant in (comparison.baseline, comparison.mode)
    ]
    assert seconds[1] == seconds[0] + reward_seconds


@pytest.mark.parametrize("passes", [True, False])
def test_a_judge_says_what_the_row_says(passes: bool) -> None:
    assert asyncio.run(judged_verdict("p", "r", passes=passes, judge_seconds=0.0)) == float(passes)
