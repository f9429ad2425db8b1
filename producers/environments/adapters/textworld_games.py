"""Worlds of text made by TextWorld from the seed, without a network.

Needs the package textworld (extra `games`), which imports parts under the GPL: run it under an interpreter of its own.
Making a world takes about two seconds; with `games_directory` it is made once for all episodes of its seed.
"""

from __future__ import annotations

import tempfile
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import textworld

from producers.environments.adapters.folded_seeds import folded_seed
from producers.environments.ports import Declaration, Observation, StepResult

_seed_bits = 30
_making = threading.Lock()
"""The maker of worlds runs programs and keeps state of its own: one at a time in a process."""


class TextWorldGame:
    """A quest in a world of `num_rooms` rooms and `num_objects` objects, that takes `quest_length` actions.

    The rewards of an episode add up to 1 for a quest that is fulfilled. Held-out worlds are others than those of
    training whatever their seeds are: they are made from odd numbers, the others from even ones.
    """

    def __init__(
        self,
        *,
        num_rooms: int = 3,
        num_objects: int = 6,
        quest_length: int = 3,
        held_out: bool = False,
        show_commands: bool = False,
        games_directory: str | None = None,
        max_turns: int = 50,
    ) -> None:
        self.declaration = Declaration("replay", max_turns=max_turns)
        self._sizes = (num_rooms, num_objects, quest_length)
        self._held_out = held_out
        self._show_commands = show_commands
        self._own_directory = None if games_directory else tempfile.TemporaryDirectory(prefix="textworld-")
        self._directory = Path(games_directory or self._own_directory.name)  # type: ignore[union-attr]  # one of both
        self._game: Any = None
        self._score = 0.0
        self._max_score = 1.0

    def reset(self, seed: int) -> Observation:
        """Make the world of the seed, or take it from the directory, and enter it."""
        number = 2 * folded_seed(seed, _seed_bits) + self._held_out
        self._leave()
        infos = textworld.EnvInfos(
            feedback=True,
            description=True,
            objective=True,
            won=True,
            lost=True,
            score=True,
            max_score=True,
            admissible_commands=self._show_commands,
        )
        self._game = textworld.start(str(self._file(number)), infos)
        state = self._game.reset()
        self._score, self._max_score = 0.0, float(state["max_score"] or 1)
        text = f"{state['objective']}\n\n{state['description'].strip()}"
        return Observation.of(text + self._commands(state), world=number)

    def step(self, action: str) -> StepResult:
        """Hand a command to the world; of several lines only the first counts."""
        lines = action.strip().splitlines() or ["look"]
        state, _, done = self._game.step(lines[0])
        score = float(state["score"] or 0)
        reward, self._score = (score - self._score) / self._max_score, score
        text = state["feedback"].replace("\n>", "\n").strip()
        return StepResult.of(
            text if done else text + self._commands(state),
            reward=reward,
            done=bool(done),
            won=bool(state["won"]),
        )

    def close(self) -> None:
        """Leave the world, and remove it where no directory was given."""
        self._leave()
        if self._own_directory is not None:
            self._own_directory.cleanup()

    def _leave(self) -> None:
        if self._game is not None:
            self._game.close()
            self._game = None

    def _commands(self, state: Any) -> str:
        if not self._show_commands:
            return ""
        return "\n\nYou can: " + ", ".join(sorted(state["admissible_commands"])) + "."

    def _file(self, number: int) -> Path:
        """The world's file, made if it is not there; its companion of the same name is there before it."""
        name = sha256(repr((self._sizes, number)).encode()).hexdigest()[:24]
        world = self._directory / f"{name}.z8"
        with _making:
            if not world.exists():
                self._make(number, world)
        return world

    def _make(self, number: int, world: Path) -> None:
        options = textworld.GameOptions()
        options.nb_rooms, options.nb_objects, options.quest_length = self._sizes
        options.seeds = number
        options.file_ext = ".z8"
        options.force_recompile = True
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory) as folder:
            made = Path(folder) / world.name
            options.path = str(made)
            textworld.make(options)
            for file in (made.with_suffix(".json"), made):
                file.replace(world.with_suffix(file.suffix))
