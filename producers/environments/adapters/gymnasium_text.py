"""Environments of gymnasium whose observations and actions are text, or numbers that the user gives texts for.

Needs the package gymnasium (extra `environments`), and whatever the environment needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.spaces import Discrete, Text

from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Mapping


class GymnasiumText:
    """`gymnasium.make(id, **arguments)`, played by text.

    | space of     | as text                                                                                 |
    | ---          | ---                                                                                     |
    | actions      | Text: as it is said. Discrete: `actions` maps each text that may be said to its number  |
    | observations | Text: as it is. Discrete: `observations` maps each number to its text                   |
    | observations | of any kind, with `render = true`: what `render()` shows in the mode "ansi"             |

    A text that is no action changes nothing but costs the turn. `instructions` come before the first observation.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002  # gymnasium's own word
        actions: Mapping[str, int] | None = None,
        observations: Mapping[str, str] | None = None,
        render: bool = False,
        instructions: str = "",
        arguments: Mapping[str, Any] | None = None,
        max_turns: int = 100,
    ) -> None:
        modes = {"render_mode": "ansi"} if render else {}
        self._game = gymnasium.make(id, **{"disable_env_checker": True} | modes | dict(arguments or {}))
        spec = self._game.spec
        restore = "none" if spec is None or spec.nondeterministic else "replay"
        self.declaration = Declaration(restore, max_turns=max_turns)  # type: ignore[arg-type]  # one of the two
        self._actions = _checked_actions(id, self._game.action_space, actions)
        self._observations = _checked_observations(
            id, self._game.observation_space, observations, render=render
        )
        self._render = render
        self._instructions = instructions

    def reset(self, seed: int) -> Observation:
        """Begin an episode of the seed."""
        observation, _ = self._game.reset(seed=seed)
        return Observation.of("\n".join(filter(None, [self._instructions, self._text(observation)])))

    def step(self, action: str) -> StepResult:
        """Act, if what was said is an action."""
        said = action.strip()
        if self._actions is not None and said not in self._actions:
            return StepResult.of(f"{said[:100]!r} is no action. Say one of: {', '.join(self._actions)}.")
        chosen = said if self._actions is None else self._actions[said]
        observation, reward, terminated, truncated, _ = self._game.step(chosen)
        return StepResult.of(
            self._text(observation),
            reward=float(reward),
            done=bool(terminated),
            truncated=bool(truncated and not terminated),
        )

    def close(self) -> None:
        """Close it."""
        self._game.close()

    def _text(self, observation: Any) -> str:
        if self._render:
            return str(self._game.render())
        return str(observation) if self._observations is None else self._observations[int(observation)]


def _checked_actions(name: str, space: Any, actions: Mapping[str, int] | None) -> dict[str, int] | None:
    if actions is None and isinstance(space, Text):
        return None
    if not isinstance(space, Discrete):
        raise ValueError(f"the actions of {name} are {space}: only Text and Discrete are played by text")
    given = dict(actions or {})
    wrong = [text for text, number in given.items() if not space.contains(number)]
    if not given or wrong:
        raise ValueError(
            f"actions = {given}: map each text to a number of {space}, as in {{'left': {int(space.start)}}}"
        )
    return given


def _checked_observations(
    name: str, space: Any, observations: Mapping[str, str] | None, *, render: bool
) -> dict[int, str] | None:
    """The text of each number, or None where nothing is to be looked up."""
    if render or isinstance(space, Text):
        return None
    if not isinstance(space, Discrete):
        raise ValueError(
            f"the observations of {name} are {space}: give render = true where it can show itself as text"
        )
    given = {int(number): text for number, text in (observations or {}).items()}
    missing = [
        number for number in range(int(space.start), int(space.start + space.n)) if number not in given
    ]
    if missing:
        raise ValueError(
            f"observations has no text for {missing[0]} of {space}: map every number to its text"
        )
    return given
