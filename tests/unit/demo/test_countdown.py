"""The countdown task: problems, split, demonstrations, judgement."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.demo.countdown import (
    Problem,
    attempts_of,
    check,
    demonstration,
    largest_value,
    problems,
    reward,
    row,
)
from rollog.demo.settings import WarmStartSettings

numbers = (7, 3, 8)
words = st.sampled_from(
    ["+", "-", "y", "n", ";", ":", "=", "0", "4", "12", "10", "18", "27", "28", "-4", "x"]
)
problem = st.sampled_from(problems(held_out=False) + problems(held_out=True))


def test_the_split_is_disjoint_and_large_enough_for_evaluation() -> None:
    train, held_out = problems(held_out=False), problems(held_out=True)
    assert (len(train), len(held_out)) == (1521, 333)
    assert not {p.numbers for p in train} & {p.numbers for p in held_out}
    assert len({p.prompt for p in train + held_out}) == 1521 + 333


def test_problems_come_in_the_same_order_every_time_and_mixed() -> None:
    first = [p.problem_id for p in problems(held_out=True)]
    assert first == [p.problem_id for p in problems(held_out=True)]
    assert first[:3] == ["7-7-2-12", "9-3-6-12", "4-6-7-17"]
    assert len({p.numbers[0] for p in problems(held_out=True)[:40]}) > 5


def test_a_problem_says_what_it_is() -> None:
    assert Problem(numbers, 12).prompt == "7 3 8 : 12 ="
    assert row(Problem(numbers, 12)) == {
        "prompt": "7 3 8 : 12 =",
        "numbers": [7, 3, 8],
        "target": 12,
        "id": "7-3-8-12",
    }


def test_attempts_keep_every_value_within_bounds() -> None:
    assert [a.second_value for a in attempts_of(numbers)] == [18, 2, 12]
    assert [a.second_value for a in attempts_of((9, 9, 9))] == [27, 9, 9]


@given(problem)
def test_every_target_can_be_reached(chosen: Problem) -> None:
    assert chosen.target in {a.second_value for a in attempts_of(chosen.numbers)}
    assert 0 <= chosen.target <= largest_value


@given(problem, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.6, 1.0]))
def test_demonstrations_are_right_in_everything_but_where_they_stop(
    chosen: Problem, seed: int, stop: float
) -> None:
    response = demonstration(chosen, random.Random(seed), stop_after_hit=stop, stop_after_miss=stop)
    verdict = check(chosen.numbers, chosen.target, response)
    assert verdict.arithmetic_ok
    assert verdict.marks_ok
    attempts = response.split(" ; ")
    assert len(set(attempts)) == len(attempts) == verdict.num_attempts
    assert verdict.hit == attempts[-1].endswith("y")
    if stop == 0.0:
        assert len(attempts) == len(attempts_of(chosen.numbers))
    if stop == 1.0:
        assert len(attempts) == 1


@given(st.integers(0, 2**32))
def test_where_a_demonstration_stops_can_be_independent_of_the_target(seed: int) -> None:
    lengths = {
        demonstration(
            Problem(numbers, target), random.Random(seed), stop_after_hit=0.6, stop_after_miss=0.6
        ).count(";")
        for target in (2, 12, 18)
    }
    assert len(lengths) == 1


@given(problem, st.integers(0, 2**32))
def test_a_demonstration_can_act_on_its_marks(chosen: Problem, seed: int) -> None:
    response = demonstration(chosen, random.Random(seed), stop_after_hit=1.0, stop_after_miss=0.0)
    assert response.endswith("y")
    assert response.count("y") == 1


def test_the_warm_start_hardly_acts_on_its_marks() -> None:
    settings, rng = WarmStartSettings(), random.Random(0)
    held_out = problems(held_out=True)
    shown = [
        demonstration(
            p, rng, stop_after_hit=settings.stop_after_hit, stop_after_miss=settings.stop_after_miss
        )
        for p in held_out
    ]
    rewarded = [
        check(p.numbers, p.target, response).reward for p, response in zip(held_out, shown, strict=True)
    ]
    assert 0.3 < sum(rewarded) / len(rewarded) < 0.5


@pytest.mark.parametrize(
    ("response", "hit", "arithmetic_ok", "marks_ok", "num_attempts"),
    [
        ("- 4 + 12 y", True, True, True, 1),
        ("+ 10 + 18 n ; - 4 + 12 y", True, True, True, 2),
        ("  + 10 + 18 n\n;\t- 4 + 12 y ", True, True, True, 2),
        ("+ 10 + 18 n", False, True, True, 1),
        ("- 4 + 12 y ; + 10 + 18 n", False, True, True, 2),
        ("- 4 + 12 n", True, True, False, 1),
        ("+ 10 + 18 y ; - 4 + 12 y", True, True, False, 2),
        ("+ 10 + 12 y", True, False, True, 1),
        ("+ 11 + 18 n ; - 4 + 12 y", True, False, True, 2),
        ("", False, False, False, 0),
        (";", False, False, False, 0),
        ("- 4 + 12 y ;", False, False, False, 0),
        ("; - 4 + 12 y", False, False, False, 0),
        ("- 4 + 12", False, False, False, 0),
        ("- 4 + 12 y y", False, False, False, 0),
        ("- 4 + 12 y <eos>", False, False, False, 0),
        ("* 4 + 12 y", False, False, False, 0),
        ("- 04 + 12 y", False, False, False, 0),
        ("- 4 + ١٢ y", False, False, False, 0),
        ("- 4.0 + 12 y", False, False, False, 0),
        ("- -4 + 12 y", False, False, False, 0),
    ],
)
def test_a_response_is_judged_by_its_last_attempt_and_by_the_truth_of_all(
    response: str, hit: bool, arithmetic_ok: bool, marks_ok: bool, num_attempts: int
) -> None:
    verdict = check(numbers, 12, response)
    assert (verdict.hit, verdict.arithmetic_ok, verdict.marks_ok) == (hit, arithmetic_ok, marks_ok)
    assert verdict.num_attempts == num_attempts
    assert verdict.reward == float(hit and arithmetic_ok and marks_ok)


def test_a_value_out_of_bounds_cannot_be_written() -> None:
    assert check((1, 9, 9), 1, "- -8 + 1 y").num_attempts == 0
    assert not check((1, 9, 9), 1, "- 8 + 1 y").arithmetic_ok


def test_the_reward_names_its_components() -> None:
    scored = reward("7 3 8 : 12 =", "+ 10 + 18 n ; - 4 + 12 y", numbers=[7, 3, 8], target=12, id="7-3-8-12")
    assert scored == {"reward": 1.0, "hit": 1.0, "arithmetic_ok": 1.0, "marks_ok": 1.0, "num_attempts": 2.0}


def test_false_marks_cost_the_whole_reward() -> None:
    assert reward("", "- 4 + 12 n", numbers=[7, 3, 8], target=12)["reward"] == 0.0
    assert reward("", "+ 10 + 18 y ; - 4 + 12 y", numbers=[7, 3, 8], target=12)["reward"] == 0.0


@given(st.text() | st.lists(words).map(" ".join))
def test_any_text_gets_a_reward_of_0_or_1(response: str) -> None:
    scored = reward("7 3 8 : 12 =", response, numbers=[7, 3, 8], target=12)
    assert set(scored) == {"reward", "hit", "arithmetic_ok", "marks_ok", "num_attempts"}
    assert scored["reward"] in (0.0, 1.0)
    if scored["reward"]:
        assert response.rstrip().endswith("y")


@given(problem, problem, st.integers(0, 2**32))
def test_a_rewarded_response_ends_in_a_true_solution(chosen: Problem, other: Problem, seed: int) -> None:
    response = demonstration(other, random.Random(seed), stop_after_hit=0.6, stop_after_miss=0.6)
    if check(chosen.numbers, chosen.target, response).reward:
        first, _, second, last, mark = response.split()[-5:]
        signs = {"+": 1, "-": -1}
        value = chosen.numbers[0] + signs[first] * chosen.numbers[1] + signs[second] * chosen.numbers[2]
        assert value == int(last) == chosen.target
        assert mark == "y"
