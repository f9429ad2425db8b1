"""What comes from an environment's process is read with distrust."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.environments.messages import (
    declaration_of,
    observation_as_json,
    observation_of,
    result_as_json,
    result_of,
    snapshot_of,
)
from producers.environments.ports import Observation, StepResult

num_seats = 12
seats = st.integers(0, num_seats - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def results(draw: st.DrawFn) -> StepResult:
    seen = draw(st.dictionaries(seats, texts, min_size=1))
    to_act = tuple(draw(st.sets(st.sampled_from(sorted(seen)))))
    observation = Observation(
        seen, to_act, draw(st.dictionaries(texts, st.integers() | texts | st.none(), max_size=3))
    )
    rewards = draw(st.dictionaries(seats, st.floats(allow_nan=False, allow_infinity=False)))
    return StepResult(observation, rewards, draw(st.frozensets(seats)), draw(st.booleans()))


@settings(max_examples=50)
@given(results())
def test_whatever_is_written_is_read_back(result: StepResult) -> None:
    assert result_of(json.loads(json.dumps(result_as_json(result))), num_seats) == result
    written = json.loads(json.dumps(observation_as_json(result.observation)))
    assert observation_of(written, num_seats) == result.observation


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    [
        "observation",
        "texts",
        "to_act",
        "info",
        "rewards",
        "done_seats",
        "truncated",
        "restore",
        "num_seats",
        "text",
    ]
)


@settings(max_examples=50)
@given(st.dictionaries(names, json_values | st.dictionaries(names, json_values)))
def test_whatever_else_is_read_raises_one_error_only(value: dict[str, Any]) -> None:
    for read in (lambda v: result_of(v, 2), lambda v: observation_of(v, 2), declaration_of, snapshot_of):
        try:
            read(value)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "result is no JSON object"),
        ({"rewards": {"0": True}}, "reward of seat 0 is no finite number"),
        ({"rewards": {"0": 1e999}}, "reward of seat 0 is no finite number"),
        ({"rewards": {"2": 0.0}}, "there is no seat '2': seats are 0 to 1"),
        ({"rewards": {}, "observation": {"texts": {"0": 1}}}, "a text of an observation is no str"),
        ({"rewards": {}, "observation": {"texts": {}, "to_act": [0]}}, "seat 0 is to act and sees nothing"),
        ({"rewards": {}, "observation": {"texts": {}, "to_act": [0] * 3}}, "to_act is no list of seats"),
        ({"rewards": {}, "observation": {"texts": {"0": ""}, "to_act": [0, 0]}}, "to_act has a seat twice"),
        ({"rewards": {}, "observation": {"texts": {}, "to_act": [True]}}, "there is no seat 'True'"),
    ],
)
def test_results_that_are_none_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        result_of(value, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"restore": "perhaps"}, "restore = 'perhaps' is none of replay, snapshot, none"),
        ({"restore": "none", "num_seats": 0}, "num_seats = 0"),
        ({"restore": "none", "num_seats": 1, "max_turns": 0}, "max_turns = 0"),
    ],
)
def test_declarations_that_are_none_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declaration_of(value)
