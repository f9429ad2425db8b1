"""Tasks of reasoning-gym: the observation is a question, the one step scores the answer with the dataset's own scorer.

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
    from collections.abc import Mapping

_seed_bits = 31


class ReasoningGymItem:
    """One item of the dataset `dataset`, drawn from the seed.

    `configuration` are fields of the dataset's own configuration. `level` sets every attribute of its curriculum to
    that difficulty, 0 the lowest, or to the highest that the attribute has. With `answer_tag = "answer"` what is scored
    is the last text between `<answer>` and `</answer>`, and nothing where there is none; by default all that is said.
    """

    declaration = Declaration("replay", max_turns=1)

    def __init__(
        self,
        *,
        dataset: str,
        level: int | None = None,
        configuration: Mapping[str, Any] | None = None,
        answer_tag: str | None = None,
    ) -> None:
        if dataset not in DATASETS:
            raise ValueError(
                f"dataset = {dataset!r} is none of reasoning-gym's: {', '.join(sorted(DATASETS))}"
            )
        self._dataset_name = dataset
        self._configuration = _configuration(dataset, dict(configuration or {}), level)
        self._answer = re.compile(f"<{answer_tag}>(.*?)</{answer_tag}>", re.DOTALL) if answer_tag else None
        self._dataset: Any = None
        self._item: dict[str, Any] = {}

    def reset(self, seed: int) -> Observation:
        """Draw the item."""
        self._dataset = create_dataset(
            self._dataset_name, **self._configuration | {"seed": folded_seed(seed, _seed_bits), "size": 1}
        )
        self._item = self._dataset[0]
        return Observation.of(self._item["question"], dataset=self._dataset_name)

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


def _configuration(dataset: str, configuration: dict[str, Any], level: int | None) -> dict[str, Any]:
    """The fields of the dataset's configuration, those of the level among them. Raises ValueError."""
    if dataset == "composite":
        specs = [
            each | {"config": dict(each.get("config", {}))} for each in configuration.get("datasets", [])
        ]
        configuration["datasets"] = [DatasetSpec(**{"weight": 1.0} | spec) for spec in specs]
    if level is None:
        return configuration
    if dataset not in CURRICULA:
        raise ValueError(f"level = {level}: reasoning-gym has no curriculum for {dataset!r}; leave it out")
    if level < 0:
        raise ValueError(f"level = {level} is below 0, the lowest")
    curriculum = create_curriculum(dataset)
    for attribute in curriculum.attributes.values():
        curriculum.set_attr_level(attribute.name, min(level, len(attribute.levels) - 1))
    chosen: dict[str, Any] = vars(curriculum.generate_configuration(configuration))
    return {name: value for name, value in chosen.items() if name not in {"seed", "size"}}
