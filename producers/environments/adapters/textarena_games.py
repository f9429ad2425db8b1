"""Games of TextArena, for one seat or several that move in turn.

Needs the packages textarena and numpy (extra `games`), best under an interpreter of their own. Some of its games fetch
word lists and do not work without a network, Wordle and Hangman among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import textarena

from producers.environments.adapters.folded_seeds import folded_seed
from producers.environments.adapters.private_random import PrivateRandom
from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Mapping

_seed_bits = 32


class TextArenaGame:
    """`textarena.make(id)` for `num_players` seats, each shown only what is new to it.

    An action without brackets is put in brackets, which most games ask for. Rewards come with the end.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002  # TextArena's own word
        num_players: int = 2,
        max_turns: int = 200,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.declaration = Declaration("replay", num_seats=num_players, max_turns=max_turns)
        self._id = id if id.endswith("-raw") else f"{id}-raw"
        self._arguments = dict(arguments or {})
        self._random = PrivateRandom(0)
        self._game: Any = None
        self._seat = 0

    def reset(self, seed: int) -> Observation:
        """Begin a game of the seed."""
        own_seed = folded_seed(seed, _seed_bits)
        self._random = PrivateRandom(own_seed)
        with self._random:
            self._game = textarena.make(self._id, **self._arguments)
            self._game.reset(num_players=self.declaration.num_seats, seed=own_seed)
            return self._to_move()

    def step(self, action: str | Mapping[int, str]) -> StepResult:
        """Make the move of the seat whose turn it is."""
        said = action if isinstance(action, str) else action[self._seat]
        move = said if "[" in said and "]" in said else f"[{said.strip()}]"
        with self._random:
            done, _ = self._game.step(move)
            if not done:
                return StepResult(self._to_move())
            rewards, about = self._game.close()
        seats = range(self.declaration.num_seats)
        texts = {seat: self._texts(self._game.state.observations[seat]) for seat in seats}
        reasons = {
            str(seat): str(each.get("reason", ""))[:200] for seat, each in about.items() if seat in seats
        }
        return StepResult(
            Observation(texts, (), {"reasons": reasons}),
            {seat: float((rewards or {}).get(seat, 0.0)) for seat in seats},
            frozenset(seats),
        )

    def close(self) -> None:
        """Nothing is held."""

    def _to_move(self) -> Observation:
        self._seat, messages = self._game.get_observation()
        return Observation({self._seat: self._texts(messages)}, (self._seat,))

    def _texts(self, messages: Any) -> str:
        names = self._game.state.role_mapping
        return "\n".join(f"[{names.get(sender, f'Player {sender}')}] {text}" for sender, text, *_ in messages)
