"""Digests of versions stay known as long as rollouts have tokens of them."""

from __future__ import annotations

from dataclasses import replace

from support.session_driver import a_notice

from producers.rollout.versions import KnownVersions, most_digests


def versions(count: int) -> KnownVersions:
    known = KnownVersions()
    for version in range(count):
        known.load_begins(a_notice(version))
    return known


def test_what_others_say_of_a_version_that_is_known_makes_nobody_forget_it() -> None:
    newest = most_digests - 1
    known = versions(most_digests)
    own = known.digest_of(newest)
    known.learn_digests({newest: "another"})
    known.load_begins(a_notice(newest + 1))
    known.load_begins(a_notice(newest + 2))
    assert known.digest_of(newest) == own


def test_digests_that_are_learnt_stay_as_long_as_those_of_own_versions() -> None:
    known = versions(most_digests)
    known.learn_digests({most_digests + 5: "learnt"})
    known.load_begins(a_notice(most_digests))
    assert known.digest_of(most_digests + 5) == "learnt"


def test_no_more_digests_are_held_than_that() -> None:
    known = versions(1)
    known.learn_digests(dict.fromkeys(range(3 * most_digests), "learnt"))
    assert known.num_digests == most_digests


def test_after_a_fetch_that_failed_another_notice_of_the_version_is_tried_and_the_served_one_stays() -> None:
    known = versions(1)
    known.loaded(a_notice(0))
    forged, true = replace(a_notice(1), name="forged"), a_notice(1)
    known.add(forged)
    known.add(true)
    known.fetch_failed(forged)
    assert known.target(()) == true
    assert known.served == a_notice(0)
    known.fetch_failed(true)
    assert known.target(()) == forged
    known.fetch_failed(a_notice(7))
    assert known.target(()) == forged


def test_after_a_load_that_failed_another_notice_of_the_version_is_tried() -> None:
    known = versions(1)
    known.loaded(a_notice(0))
    lost, again = a_notice(1), replace(a_notice(1), name="published again")
    known.add(lost)
    known.add(again)
    assert known.target(()) == lost
    known.load_begins(lost)
    known.load_failed(lost)
    assert known.target(()) == again
    known.load_failed(again)
    assert known.target(()) == lost
