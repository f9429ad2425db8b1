"""The restart policy, turned by hand."""

from __future__ import annotations

import pytest

from rollog.run.restart_policy import Done, Exit, GiveUp, Restart, RestartPolicy, decide

policy = RestartPolicy(max_restarts=3, window_seconds=100, first_delay_seconds=1, longest_delay_seconds=3)


def crashes(*times: float, status: int = 1) -> list[Exit]:
    return [Exit(status=status, at_seconds=at) for at in times]


def test_a_role_that_ends_well_is_done_whatever_happened_before() -> None:
    assert decide(policy, [*crashes(0, 1, 2), Exit(status=0, at_seconds=3)]) == Done()


def test_the_pause_doubles_up_to_a_bound() -> None:
    pauses = [decide(policy, crashes(*range(count))) for count in (1, 2, 3)]

    assert [pause.after_seconds for pause in pauses if isinstance(pause, Restart)] == [1, 2, 3]


def test_one_crash_too_many_within_the_window_ends_it() -> None:
    decision = decide(policy, crashes(0, 1, 2, 3))

    assert isinstance(decision, GiveUp)
    assert "3 restarts within 100 s" in decision.reason


def test_old_crashes_are_forgotten() -> None:
    assert decide(policy, crashes(0, 1, 2, 300)) == Restart(after_seconds=1, reason="exit status 1")


def test_a_fenced_role_is_never_restarted() -> None:
    decision = decide(policy, crashes(0, status=78))

    assert isinstance(decision, GiveUp)
    assert "taken its place" in decision.reason


def test_a_role_that_was_suspended_is_started_again_however_often_and_that_counts_for_no_crash() -> None:
    suspended = crashes(*range(10), status=75)

    decision = decide(policy, suspended)
    after_crash = decide(policy, [*suspended, *crashes(11)])

    assert isinstance(decision, Restart)
    assert decision.after_seconds == policy.longest_delay_seconds
    assert "suspended" in decision.reason
    assert after_crash == Restart(after_seconds=policy.first_delay_seconds, reason="exit status 1")
    assert isinstance(decide(policy, [*crashes(0, 1, 2, 3), *suspended]), Restart)


def test_wrong_settings_are_never_retried() -> None:
    decision = decide(policy, crashes(0, status=2))

    assert isinstance(decision, GiveUp)
    assert "settings" in decision.reason


@pytest.mark.parametrize(
    ("status", "words"),
    [(-9, "killed by SIGKILL"), (143, "exit status 143"), (-99, "killed by signal 99")],
)
def test_the_reason_says_how_it_ended(status: int, words: str) -> None:
    decision = decide(policy, crashes(0, status=status))

    assert decision == Restart(after_seconds=1, reason=words)


def test_an_engine_that_cannot_start_is_tried_once_more() -> None:
    assert isinstance(decide(policy, crashes(0, status=3)), Restart)
    assert isinstance(decide(policy, [*crashes(0, status=3), *crashes(1), *crashes(2, status=3)]), Restart)

    decision = decide(policy, [*crashes(0), *crashes(1, 2, status=3)])

    assert isinstance(decision, GiveUp)
    assert "could not start twice" in decision.reason
