"""Tasks of reasoning-gym: the observation is a question, the one step scores the answer with the dataset's own scorer.

How hard an item is follows from the seed of its episode, so that an episode that is replayed gets the item it had:

    level = 2                                     every item is of level 2
    level = [0, 0, 3]                             one item in three is of level 3, the others of level 0
    level = [0, 1, 3], seeds_per_level = 200      seeds 0 to 199 are of level 0, 200 to 399 of level 1, 400 to 599 of
                                                  level 3; all others, held-out seeds among them, of one of the three

Needs the package reasoning-gym (extra `environments`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum, create_dataset

from producers.environments.adapters.folded_seeds import folded_seed
from producers.environments.ports import Declaration, Observation, StepResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_seed_bits = 31
_digest_bits = 64


class ReasoningGymItem:
    """One item of the dataset `dataset`, drawn from the seed.

    `level` sets every attribute of the dataset's curriculum to that difficulty, 0 the lowest, or to the highest that
    the attribute has; of a list, each seed has one, as above. `configuration` are fields of the dataset's own
    configuration, and win over those of the level. With `answer_tag = "answer"` what is scored is the last text between
    `<answer>` and `</answer>`, and nothing where there is none; by default all that is said.
    """

    declaration = Declaration("replay", max_turns=1)

    def __init__(
        self,
        *,
        dataset: str,
        level: int | Sequence[int] | None = None,
        seeds_per_level: int | None = None,
        configuration: Mapping[str, Any] | None = None,
        answer_tag: str | None = None,
    ) -> None:
        if dataset not in DATASETS:
            raise ValueError(
                f"dataset = {dataset!r} is none of reasoning-gym's: {', '.join(sorted(DATASETS))}"
            )
        self._dataset_name = dataset
        self._levels = _levels(dataset, level, seeds_per_level)
        self._seeds_per_level = seeds_per_level
        given = _configuration(dataset, dict(configuration or {}))
        self._configurations = {each: _of_level(dataset, each, given) for each in self._levels}
        self._answer = re.compile(f"<{answer_tag}>(.*?)</{answer_tag}>", re.DOTALL) if answer_tag else None
        self._dataset: Any = None
        self._item: dict[str, Any] = {}

    def reset(self, seed: int) -> Observation:
        """Draw the item; `info` tells its dataset and level."""
        level = self.level_of(seed)
        fields = self._configurations[level] | {"seed": folded_seed(seed, _seed_bits), "size": 1}
        self._dataset = create_dataset(self._dataset_name, **fields)
        self._item = self._dataset[0]
        return Observation.of(self._item["question"], dataset=self._dataset_name, level=level)

    def level_of(self, seed: int) -> int | None:
        """How hard the item of this seed is: easy ones first where `seeds_per_level` says so."""
        if self._seeds_per_level is not None:
            stage = seed // self._seeds_per_level
            if stage < len(self._levels):
                return self._levels[stage]
        # The item is drawn from the digest's high bits, so that the level says nothing of it.
        return self._levels[folded_seed(seed, _digest_bits) % len(self._levels)]

    def step(self, action: str) -> StepResult:
        """Score the answer: 0 where the scorer raises for what was said, with its error in `info`."""
        try:
            score = float(self._dataset.score_answer(self._said(action), self._item))
        except Exception as error:  # noqa: BLE001  # scorers parse what the agent said, and may raise anything
            reason = f"{type(error).__name__}: {error}"[:200]
            return StepResult.of("", reward=0.0, done=True, scorer_error=reason)
        return StepResult.of("", reward=score, done=True)

    def close(self) -> None:
        """Nothing is held."""

    def _said(self, action: str) -> str:
        if self._answer is None:
            return action.strip()
        answers = self._answer.findall(action)
        return answers[-1].strip() if answers else ""


def _levels(
    dataset: str, level: int | Sequence[int] | None, seeds_per_level: int | None
) -> tuple[int | None, ...]:
    """The levels that items may have; None is the dataset's own default. Raises ValueError."""
    if seeds_per_level is not None and (isinstance(level, int) or level is None or seeds_per_level < 1):
        raise ValueError(
            f"seeds_per_level = {seeds_per_level} with level = {level}: give 1 or more, and a list of levels"
        )
    if level is None:
        return (None,)
    if dataset not in CURRICULA:
        raise ValueError(f"level = {level}: reasoning-gym has no curriculum for {dataset!r}; leave it out")
    levels = (level,) if isinstance(level, int) else tuple(level)
    if not levels or not all(isinstance(each, int) and each >= 0 for each in levels):
        raise ValueError(f"level = {level}: give one or more levels from 0, the lowest, on")
    return levels


def _configuration(dataset: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """The fields that the user gives, as the dataset takes them."""
    if dataset == "composite":
        specs = [
            each | {"config": dict(each.get("config", {}))} for each in configuration.get("datasets", [])
        ]
        configuration["datasets"] = [DatasetSpec(**{"weight": 1.0} | spec) for spec in specs]
    return configuration


def _of_level(dataset: str, level: int | None, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a level, with those that are given in their place. Raises ValueError for what is refused."""
    if level is None:
        return dict(given)
    curriculum = create_curriculum(dataset)
    curriculum.set_global_level(level)
    chosen = curriculum.generate_configuration()
    fields = {name: value for name, value in vars(chosen).items() if name not in {"seed", "size"}} | given
    configured = type(chosen)(**fields)
    try:
        if hasattr(configured, "validate"):
            configured.validate()
    except AssertionError as error:
        raise ValueError(
            f"level = {level}: {dataset} refuses its own configuration of that level ({error}); give the field in "
            "`configuration`, or leave the level out"
        ) from error
    return fields
