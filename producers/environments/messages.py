"""Observations and results as JSON objects, written by the environment's process and read by the pool.

Only the standard library is imported here. Readers check everything: what comes from an environment's process is not
trusted.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from producers.environments.ports import Declaration, Observation, StepResult

_restores = ("replay", "snapshot", "none")
_most_seats = 1024
_most_seat_digits = 4


def declaration_as_json(declaration: Declaration) -> dict[str, Any]:
    """The JSON object of a declaration."""
    return {
        "restore": declaration.restore,
        "num_seats": declaration.num_seats,
        "max_turns": declaration.max_turns,
    }


def declaration_of(value: object) -> Declaration:
    """The declaration in a JSON object. Raises ValueError."""
    fields = _mapping("declaration", value)
    restore, num_seats, max_turns = (fields.get(name) for name in ("restore", "num_seats", "max_turns"))
    if restore not in _restores:
        raise ValueError(f"restore = {str(restore)[:100]!r} is none of {', '.join(_restores)}")
    if type(num_seats) is not int or not 1 <= num_seats <= _most_seats:
        raise ValueError(f"num_seats = {str(num_seats)[:100]} is no number from 1 to {_most_seats}")
    if type(max_turns) is not int or max_turns < 1:
        raise ValueError(f"max_turns = {str(max_turns)[:100]} is no number above 0")
    return Declaration(restore, num_seats, max_turns)


def observation_as_json(observation: Observation) -> dict[str, Any]:
    """The JSON object of an observation."""
    return {
        "texts": {str(seat): text for seat, text in observation.texts.items()},
        "to_act": list(observation.to_act),
        "info": dict(observation.info),
    }


def observation_of(value: object, num_seats: int) -> Observation:
    """The observation in a JSON object. Raises ValueError."""
    fields = _mapping("observation", value)
    texts = {_seat(seat, num_seats): text for seat, text in _mapping("texts", fields.get("texts")).items()}
    if not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("a text of an observation is no str")
    to_act = _seats("to_act", fields.get("to_act"), num_seats)
    if unseen := [seat for seat in to_act if seat not in texts]:
        raise ValueError(f"seat {unseen[0]} is to act and sees nothing")
    return Observation(texts, to_act, _mapping("info", fields.get("info")))


def result_as_json(result: StepResult) -> dict[str, Any]:
    """The JSON object of a step's result."""
    return {
        "observation": observation_as_json(result.observation),
        "rewards": {str(seat): reward for seat, reward in result.rewards.items()},
        "done_seats": sorted(result.done_seats),
        "truncated": result.truncated,
    }


def result_of(value: object, num_seats: int) -> StepResult:
    """The result in a JSON object. Raises ValueError."""
    fields = _mapping("result", value)
    rewards = {
        _seat(seat, num_seats): reward for seat, reward in _mapping("rewards", fields.get("rewards")).items()
    }
    for seat, reward in rewards.items():
        if not isinstance(reward, float) or not isfinite(reward):
            raise ValueError(f"the reward of seat {seat} is no finite number: {str(reward)[:100]}")
    return StepResult(
        observation_of(fields.get("observation"), num_seats),
        rewards,
        frozenset(_seats("done_seats", fields.get("done_seats"), num_seats)),
        fields.get("truncated") is True,
    )


def snapshot_of(value: object) -> dict[str, Any]:
    """The snapshot in a JSON object. Raises ValueError."""
    fields = _mapping("snapshot", value)
    text, num_turns = fields.get("text"), fields.get("num_turns")
    if not isinstance(text, str) or type(num_turns) is not int or num_turns < 0:
        raise ValueError("a snapshot is no object of a text and a number of turns")
    return {"text": text, "num_turns": num_turns}


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no JSON object: {str(value)[:100]!r}")
    return value


def _seats(name: str, value: object, num_seats: int) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > num_seats:
        raise ValueError(f"{name} is no list of seats: {str(value)[:100]!r}")
    seats = tuple(_seat(seat, num_seats) for seat in value)
    if len(set(seats)) < len(seats):
        raise ValueError(f"{name} has a seat twice: {str(value)[:100]}")
    return seats


def _seat(value: object, num_seats: int) -> int:
    """A seat's number; keys of JSON objects are texts."""
    seat = (
        int(value)
        if isinstance(value, str) and value.isdecimal() and len(value) <= _most_seat_digits
        else value
    )
    if type(seat) is not int or not 0 <= seat < num_seats:
        raise ValueError(f"there is no seat {str(value)[:100]!r}: seats are 0 to {num_seats - 1}")
    return seat
