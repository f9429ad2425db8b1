"""One environment under the rules of the port: whatever it gives is checked, bounded, and made of plain values.

Runs in the environment's process, so only the standard library is imported here.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, replace
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from producers.environments.background_loop import BackgroundLoop
from producers.environments.messages import declaration_as_json, declaration_of
from producers.environments.ports import Observation, SnapshotEnvironment, StepResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from producers.environments.ports import Action, Environment

most_info_bytes = 16_384
"""Longest `info` of one observation, as JSON."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one observation may take: UTF-8 bytes of all its texts together, and of a snapshot."""

    max_observation_bytes: int = 262_144
    max_snapshot_bytes: int = 4_194_304


class Episode:
    """One instance of an environment, one call at a time, each to its end.

    | state   | reached by                  | what may come                   |
    | ---     | ---                         | ---                             |
    | new     | the constructor             | reset, restore                  |
    | playing | reset, restore              | step by the seats that are to act, snapshot, reset |
    | over    | a step after which nobody acts, or the last of `max_turns` | reset |
    | closed  | close                       | nothing                         |

    Every method raises ValueError for a call that may not come, or for what the environment gave; what the environment
    itself raises passes through.
    """

    def __init__(self, environment: Environment, bounds: Bounds) -> None:
        # It may be any object of a user's: its declaration is read as carefully as one from another process.
        self.declaration = declaration_of(declaration_as_json(environment.declaration))
        if self.declaration.restore == "snapshot" and not isinstance(environment, SnapshotEnvironment):
            raise ValueError(
                f'{type(environment).__name__} declares restore = "snapshot" and lacks snapshot() or restore(); '
                'add both, or declare "replay" or "none"'
            )
        self._environment = environment
        self._bounds = bounds
        self._loop: BackgroundLoop | None = None
        self._is_interrupted = False
        self._to_act: tuple[int, ...] = ()
        self._state = "new"
        self._num_turns = 0

    def reset(self, seed: int) -> Observation:
        """Begin an episode."""
        self._refuse_if_closed()
        observation = self._checked(self._result_of(self._environment.reset(seed)))
        return self._began(observation, num_turns=0)

    def step(self, action: Action) -> StepResult:
        """Hand the seats' actions on, and check what comes of them."""
        self._refuse_if_closed()
        if self._state != "playing":
            raise ValueError(f"step after the end: the episode is {self._state}; reset it, or open another")
        actions = _actions(action, self._to_act)
        value = self._result_of(
            self._environment.step(actions if self.declaration.num_seats > 1 else actions[0])
        )
        if not isinstance(value, StepResult):
            raise ValueError(f"step returned no StepResult, but {type(value).__name__}")
        self._num_turns += 1
        result = self._ended(self._checked_result(value))
        self._to_act = result.observation.to_act
        if result.is_over:
            self._state = "over"
        return result

    def snapshot(self) -> dict[str, Any]:
        """What `restore` goes on from: the environment's own text, and the number of turns taken."""
        self._refuse_if_closed()
        environment = self._with_snapshots()
        if self._state != "playing":
            raise ValueError(f"there is nothing to go on from: the episode is {self._state}")
        text = self._result_of(environment.snapshot())
        if not isinstance(text, str):
            raise ValueError(f"snapshot returned no str, but {type(text).__name__}")
        _bound("the snapshot", [text], self._bounds.max_snapshot_bytes, "max_snapshot_bytes")
        return {"text": text, "num_turns": self._num_turns}

    def restore(self, snapshot: Mapping[str, Any]) -> Observation:
        """Go on from a snapshot."""
        self._refuse_if_closed()
        environment = self._with_snapshots()
        observation = self._checked(self._result_of(environment.restore(str(snapshot["text"]))))
        return self._began(observation, num_turns=int(snapshot["num_turns"]))

    def interrupt(self) -> None:
        """Cancel an `async def` method that is under way; a plain one goes on to its end. From any thread."""
        self._is_interrupted = True
        if self._loop is not None:
            self._loop.interrupt()

    def close(self) -> None:
        """Close the environment. Idempotent."""
        if self._state == "closed":
            return
        self._state = "closed"
        try:
            value = self._environment.close()
            if inspect.isawaitable(value):
                self._own_loop().last_result_of(value)
        finally:
            if self._loop is not None:
                self._loop.close()

    def _began(self, observation: Observation, num_turns: int) -> Observation:
        if observation.is_over:
            raise ValueError("the first observation lets nobody act: to_act is empty")
        self._to_act = observation.to_act
        self._state = "playing"
        self._num_turns = num_turns
        return observation

    def _ended(self, result: StepResult) -> StepResult:
        """The result, ended by the bound on turns if nothing else has ended the episode."""
        every_seat = frozenset(range(self.declaration.num_seats))
        if result.is_over:
            return replace(result, done_seats=every_seat)
        if self._num_turns < self.declaration.max_turns:
            return result
        observation = replace(result.observation, to_act=())
        return replace(result, observation=observation, done_seats=every_seat, truncated=True)

    def _result_of(self, value: Any) -> Any:
        """What a method gave; if it is to be awaited, on a loop that lives as long as the episode."""
        return self._own_loop().result_of(value) if inspect.isawaitable(value) else value

    def _own_loop(self) -> BackgroundLoop:
        if self._loop is None:
            self._loop = BackgroundLoop()
            # Whoever interrupted meanwhile may have seen none.
            if self._is_interrupted:
                self._loop.interrupt()
        return self._loop

    def _checked_result(self, result: StepResult) -> StepResult:
        done_seats = frozenset(self._seat(seat) for seat in result.done_seats)
        observation = self._checked(result.observation)
        if gone := done_seats.intersection(observation.to_act):
            raise ValueError(f"seat {min(gone)} is done and is to act")
        rewards = {self._seat(seat): _finite(seat, reward) for seat, reward in result.rewards.items()}
        return StepResult(observation, rewards, done_seats, bool(result.truncated))

    def _checked(self, observation: Any) -> Observation:
        if not isinstance(observation, Observation):
            raise ValueError(f"no Observation was returned, but {type(observation).__name__}")
        texts = {self._seat(seat): text for seat, text in observation.texts.items()}
        for seat, text in texts.items():
            if not isinstance(text, str):
                raise ValueError(f"seat {seat} was shown no str, but {type(text).__name__}")
        _bound("an observation", texts.values(), self._bounds.max_observation_bytes, "max_observation_bytes")
        to_act = tuple(self._seat(seat) for seat in observation.to_act)
        if unseen := [seat for seat in to_act if seat not in texts]:
            raise ValueError(f"seat {unseen[0]} is to act and sees nothing; give it a text")
        return Observation(texts, to_act, _small(observation.info))

    def _seat(self, seat: Any) -> int:
        num_seats = self.declaration.num_seats
        if not isinstance(seat, int) or not 0 <= seat < num_seats:
            raise ValueError(f"there is no seat {str(seat)[:100]!r}: seats are 0 to {num_seats - 1}")
        return int(seat)

    def _with_snapshots(self) -> SnapshotEnvironment:
        if self.declaration.restore != "snapshot":
            raise ValueError(f'the environment declares restore = "{self.declaration.restore}": no snapshots')
        assert isinstance(self._environment, SnapshotEnvironment)
        return self._environment

    def _refuse_if_closed(self) -> None:
        if self._state == "closed":
            raise ValueError("the episode is closed; open another")


def _actions(action: Action, to_act: tuple[int, ...]) -> dict[int, str]:
    """What each seat says, of exactly the seats that are to act."""
    if isinstance(action, str):
        if len(to_act) != 1:
            raise ValueError(f"seats {to_act} are to act: give a mapping of seat to str, not one str")
        return {to_act[0]: action}
    if set(action) != set(to_act):
        raise ValueError(
            f"actions came for seats {sorted(action)}, and those that are to act are {sorted(to_act)}"
        )
    return dict(action)


def _finite(seat: Any, reward: Any) -> float:
    scalar = reward.item() if hasattr(reward, "item") and not isinstance(reward, Real) else reward
    if not isinstance(scalar, Real) or not isfinite(scalar):
        raise ValueError(f"the reward of seat {seat} is no finite number: {str(reward)[:100]!r}")
    return float(scalar)


def _bound(what: str, texts: Iterable[str], most: int, name: str) -> None:
    """Refuse texts that together take too much room, or that UTF-8 cannot hold."""
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} holds half a surrogate pair at {error.start}, which UTF-8 cannot hold"
        ) from None
    if size > most:
        raise ValueError(f"{what} takes {size} bytes, above {name} = {most}; shorten it or raise the bound")


def _small(info: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(dict(info), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"info is no JSON object: {error}") from None
    if len(text) > most_info_bytes:
        raise ValueError(
            f"info takes {len(text)} bytes as JSON, above {most_info_bytes}; keep what a reader needs"
        )
    value: dict[str, Any] = json.loads(text)
    return value
