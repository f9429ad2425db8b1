"""Episodes in discrete events, against cases worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

import pytest

from benchmarks.agentic.draws import EpisodeDraw, EpisodeDraws
from benchmarks.agentic.ideal import EpisodeModel, EpisodePlan, lock_step_ends
from benchmarks.agentic.variants import (
    asynchrony_comparisons,
    parts,
    redundancy_comparisons,
    training_comparisons,
)


@dataclass
class Written:
    """Draws written down: latencies of the episodes named, one turn of `other` for all others."""

    latencies: dict[tuple[int, int, int], tuple[float, ...]] = field(default_factory=dict)
    hanging: frozenset[tuple[int, int, int]] = frozenset()
    other: float = 1.0

    def of(self, group: int, replica: int, attempt: int) -> EpisodeDraw:
        name = (group, replica, attempt)
        latencies = self.latencies.get(name, (self.other,))
        return EpisodeDraw(latencies=latencies, hangs_at=0 if name in self.hanging else None)


def a_plan(**changes: float) -> EpisodePlan:
    values = {"num_groups": 1, "group_size": 1, "num_places": 8, "turn_seconds": 0.0}
    return EpisodePlan(**(values | changes))  # type: ignore[arg-type]


def ends(draws: Written, **changes: float) -> list[float]:
    return EpisodeModel(draws, a_plan(**changes)).step_ends()


def test_in_lock_step_every_turn_takes_as_long_as_its_slowest_environment() -> None:
    draws = Written({(0, 0, 0): (1.0, 5.0), (0, 1, 0): (3.0, 2.0)})
    plan = a_plan(group_size=2, turn_seconds=1.0, train_seconds=4.0)
    assert lock_step_ends(draws, plan) == [(1 + 3) + (1 + 5) + 4]


def test_in_lock_step_a_hanging_environment_ends_everything() -> None:
    with pytest.raises(ValueError, match="one environment hangs"):
        lock_step_ends(Written(hanging=frozenset({(0, 0, 0)})), a_plan())


def test_on_their_own_the_longest_episode_counts() -> None:
    draws = Written({(0, 0, 0): (1.0, 5.0), (0, 1, 0): (3.0, 2.0)})
    assert ends(draws, group_size=2, turn_seconds=1.0) == [1 + 1 + 1 + 5]


def test_who_finds_no_place_waits_for_one() -> None:
    draws = Written({(0, 0, 0): (2.0,), (0, 1, 0): (3.0,), (0, 2, 0): (4.0,)})
    # The first place is free at 2, and the third episode takes it until 6.
    assert ends(draws, group_size=3, num_places=2) == [6]


def test_of_redundant_members_and_groups_the_first_to_finish_count() -> None:
    draws = Written({(0, 0, 0): (9.0,), (0, 1, 0): (4.0,), (1, 0, 0): (5.0,), (1, 1, 0): (3.0,)})
    assert ends(draws) == [9]
    assert ends(draws, redundant_replicas=1) == [4]
    assert ends(draws, redundant_replicas=1, redundant_groups=1) == [3]


def test_what_is_not_needed_any_more_gives_its_place_back() -> None:
    draws = Written({(0, 0, 0): (9.0,), (0, 1, 0): (4.0,), (1, 0, 0): (2.0,)})
    # Group 1 gets the place that the first member of group 0 had until 4.
    assert ends(draws, num_groups=2, redundant_replicas=1, num_places=2) == [4 + 1]


def test_one_that_hangs_is_ordered_again_after_its_time_out() -> None:
    draws = Written({(0, 0, 1): (3.0,)}, hanging=frozenset({(0, 0, 0)}))
    assert ends(draws, timeout_seconds=10.0) == [13]


def test_one_that_is_slower_than_the_time_out_is_ordered_again() -> None:
    draws = Written({(0, 0, 0): (11.0,), (0, 0, 1): (3.0,)})
    assert ends(draws, timeout_seconds=10.0) == [13]


def test_training_overlaps_with_as_many_batches_as_alpha_allows() -> None:
    draws = Written(other=2.0)
    assert ends(draws, num_steps=3, train_seconds=5.0) == [7, 14, 21]
    assert ends(draws, num_steps=3, train_seconds=5.0, alpha=1) == [7, 12, 17]


def test_what_is_left_over_of_an_excess_is_made_again_and_not_waited_for() -> None:
    # Group 1 finishes at 3 under version 0, which is too old at 7; its second attempt would end at 10.
    draws = Written({(0, 0, 0): (2.0,), (1, 0, 0): (3.0,), (1, 0, 1): (3.0,)})
    assert ends(draws, num_steps=2, redundant_groups=1, train_seconds=5.0) == [7, 8 + 5]


@pytest.mark.parametrize(("seconds_again", "last"), [(3.0, 11.0), (10.0, 18.0)])
def test_a_group_that_went_stale_is_waited_for(seconds_again: float, last: float) -> None:
    # Group 1 is taken back at 6, when version 2 is there, and may be as old as version 2 when version 3 is trained.
    draws = Written({(1, 0, 0): (100.0,), (1, 0, 1): (seconds_again,)})
    assert ends(draws, num_steps=4, train_seconds=2.0, alpha=1) == [3, 6, 9, last]


def test_draws_have_the_shares_and_latencies_that_were_asked_for() -> None:
    draws = EpisodeDraws(seed=0, number=1, num_turns=20, sigma=5.0, slow_share=0.03, hang_share=0.01)
    found = [draws.of(group, replica, 0) for group in range(500) for replica in range(8)]
    assert draws.of(3, 2, 0) == draws.of(3, 2, 0) != draws.of(3, 2, 1)
    assert fmean(each.hangs_at is not None for each in found) == pytest.approx(0.01, abs=0.005)
    means = [fmean(each.latencies) for each in found]
    assert fmean(mean > 50 for mean in means) == pytest.approx(0.03, abs=0.01)
    # N(10, 5) cut at 0 has a mean of 10.04.
    assert fmean(mean for mean in means if mean < 50) == pytest.approx(10.04, abs=0.1)
    assert min(min(each.latencies) for each in found) == 0


def test_the_ideal_brings_with_environments_on_their_own_what_the_paper_shows() -> None:
    (comparison,) = asynchrony_comparisons(512)
    pairs = [[side.ideal_seconds(0, n) for side in (comparison.baseline, comparison.mode)] for n in range(3)]
    assert fmean(a for a, _ in pairs) / fmean(b for _, b in pairs) == pytest.approx(2.46, abs=0.1)


def test_training_takes_a_third_of_a_step_in_lock_step() -> None:
    baseline = training_comparisons(64)[0].baseline
    steps = fmean(baseline.ideal_seconds(0, number) for number in range(100))
    assert baseline.train_seconds / steps == pytest.approx(1 / 3, abs=0.01)


def test_only_where_environments_hang_episodes_are_timed() -> None:
    variants = [each.mode for part in parts.values() for each in part.comparisons(part.num_environments)]
    assert all((each.timeout_seconds < 1e5) == (each.hang_share > 0) for each in variants)
    assert redundancy_comparisons(256)[0].mode.timeout_seconds == pytest.approx(10 * 20 * (1 + 1.27 * 10))
