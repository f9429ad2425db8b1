"""What an environment is: text in, text out, one seat or several.

Only the standard library is imported here: this file is read by the interpreter that runs the environment, which need
not be the one that runs rollog. Seats are numbered 0 to num_seats - 1; an environment for one agent has seat 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Awaitable

Action = str | Mapping[int, str]
"""What one seat says; where there are several seats, what each seat says that is to act."""

Restore = Literal["replay", "snapshot", "none"]
"""How an episode is brought back in another process.

| restore  | promise                                                                                     |
| ---      | ---                                                                                         |
| replay   | equal seeds and equal actions give equal observations, rewards and ends, in every process   |
| snapshot | `snapshot()` gives a text from which `restore()` goes on in a new instance                  |
| none     | neither: it acts on something outside, or draws from no seed                                |
"""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What an environment says of itself. `max_turns` is the number of steps after which an episode is cut short."""

    restore: Restore = "none"
    num_seats: int = 1
    max_turns: int = 100


@dataclass(frozen=True, slots=True)
class Observation:
    """What the seats see, and which of them act next.

    `texts` has an entry for each seat that sees something new, always for those that are to act. `to_act` is empty when
    the episode is over, and only then. `info` is a small JSON object for whoever reads the run; no agent sees it.
    """

    texts: Mapping[int, str]
    to_act: tuple[int, ...] = (0,)
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, **info: Any) -> Observation:
        """What the only seat sees, before it acts."""
        return cls({0: text}, info=info)

    @property
    def text(self) -> str:
        """What the only seat sees, or the only one that is to act. Raises ValueError where that is not one seat."""
        (seat,) = self.to_act or self.texts
        return self.texts[seat]

    @property
    def is_over(self) -> bool:
        """Whether nobody acts any more."""
        return not self.to_act


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step led to.

    `rewards` are those of this step alone, of each seat that got one. `done_seats` have left the game. `truncated`: a
    bound ended the episode, not its rules.
    """

    observation: Observation
    rewards: Mapping[int, float] = field(default_factory=dict)
    done_seats: frozenset[int] = frozenset()
    truncated: bool = False

    @classmethod
    def of(
        cls, text: str, *, reward: float = 0.0, done: bool = False, truncated: bool = False, **info: Any
    ) -> StepResult:
        """What a step of the only seat led to."""
        over = done or truncated
        observation = Observation({0: text}, () if over else (0,), info)
        return cls(observation, {0: reward}, frozenset({0} if over else ()), truncated)

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended, for all seats."""
        return self.observation.is_over

    @property
    def reward(self) -> float:
        """The reward of the only seat."""
        return self.rewards.get(0, 0.0)


@runtime_checkable
class Environment(Protocol):
    """One instance plays one episode at a time. Each method may be plain or `async def`; none is called beside another.

    Whatever a method raises ends the episode as failed. `step` is never called before `reset` or after the end.
    """

    @property
    def declaration(self) -> Declaration:
        """The same for the whole life of the instance."""
        ...

    def reset(self, seed: int) -> Observation | Awaitable[Observation]:
        """Begin an episode; 0 <= seed < 2**63. Called again, begin another."""
        ...

    def step(self, action: Any) -> StepResult | Awaitable[StepResult]:
        """Take what the seats of the last `to_act` say.

        `action` is a str where the environment has one seat, else a dict of seat to str.
        """
        ...

    def close(self) -> Awaitable[None] | None:
        """Release everything. Called once, at any time."""
        ...


@runtime_checkable
class SnapshotEnvironment(Environment, Protocol):
    """What `restore = "snapshot"` asks for besides."""

    def snapshot(self) -> str | Awaitable[str]:
        """Everything the episode is made of, as text, between two steps."""
        ...

    def restore(self, snapshot: str) -> Observation | Awaitable[Observation]:
        """Go on from there, in a new instance; gives the observation that came last before the snapshot."""
        ...
