"""Which versions a run keeps, by example and for any run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollog.rules.kept_weights import KeepingRule, kept_versions


def test_without_a_rule_all_stay() -> None:
    assert kept_versions(range(20), KeepingRule(every=5)) == set(range(20))


def test_the_first_the_newest_and_every_so_many_stay() -> None:
    assert kept_versions(range(12), KeepingRule(newest=2, every=4)) == {0, 4, 8, 10, 11}


def test_what_samples_of_kept_steps_may_name_stays() -> None:
    assert kept_versions(range(12), KeepingRule(newest=2), lag=3) == {0, 7, 8, 9, 10, 11}


def test_checkpoints_young_ones_and_the_newest_evaluated_stay() -> None:
    rule = KeepingRule(newest=2, evaluated_every=5)
    assert kept_versions(range(13), rule, checkpoints=[4, 99], young=[6]) == {0, 4, 6, 10, 11, 12}


def test_the_worked_example_of_the_rule() -> None:
    rule = KeepingRule(newest=2, every=4)
    assert kept_versions(range(12), rule, lag=1, checkpoints=[5]) == {0, 4, 5, 8, 9, 10, 11}


def test_nothing_stored_nothing_kept() -> None:
    assert kept_versions((), KeepingRule(newest=2)) == set()


@given(
    stored=st.sets(st.integers(0, 60), min_size=1, max_size=30),
    rule=st.builds(
        KeepingRule,
        newest=st.integers(0, 6),
        every=st.integers(0, 7),
        evaluated_every=st.integers(0, 7),
    ),
    lag=st.integers(0, 3),
    checkpoints=st.sets(st.integers(0, 60), max_size=3),
    young=st.sets(st.integers(0, 60), max_size=3),
)
def test_what_is_named_stays_and_who_prunes_again_prunes_nothing_more(
    stored: set[int], rule: KeepingRule, lag: int, checkpoints: set[int], young: set[int]
) -> None:
    kept = kept_versions(stored, rule, lag=lag, checkpoints=checkpoints, young=young)
    assert kept <= stored
    assert max(stored) in kept
    assert ({0} | checkpoints | young) & stored <= kept
    assert kept_versions(kept, rule, lag=lag, checkpoints=checkpoints, young=young) == kept
