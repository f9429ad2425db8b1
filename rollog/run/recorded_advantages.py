"""The advantages that a recorded step gave to its samples, computed once more for an export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.settings.in_force import settings_in_force
from trainer.step.advantages import turn_advantages
from trainer.step.batch import shaped_rewards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.settings.settings import Settings
    from schemas import Sample


class RecordedAdvantages:
    """The advantages that training gave to the samples of a step: a function of their rewards and the step's settings.

    None where only training knew it, from values or because a divergence was taken off the rewards, and where turns
    have advantages of their own.
    """

    def __init__(self, settings: Settings) -> None:
        """`settings` are those of the manifest."""
        self._settings = settings

    def __call__(
        self, groups: Sequence[Sequence[Sample]], changes: Mapping[str, object]
    ) -> Sequence[Sequence[float | None]]:
        """One advantage per sample of each group; `changes` are the ledger's up to the revision of the step."""
        settings = settings_in_force(self._settings, changes)
        algorithm = settings.algorithm.with_budget(settings.response_budget)
        of_reference = algorithm.needs_reference and algorithm.kl_in == "reward"
        if of_reference or algorithm.needs_values:
            return [[None] * len(group) for group in groups]
        rewards = [[shaped_rewards(sample, algorithm) for sample in group] for group in groups]
        return [
            [turns[0] if len(turns) == 1 else None for turns in group]
            for group in turn_advantages(rewards, algorithm)
        ]
