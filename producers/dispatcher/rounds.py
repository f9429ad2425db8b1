"""Batch scheduling, kept to compare with: prompts go out in rounds.

Pure. A round begins when no task is under way. It holds the prompts that are missing at that moment and the attempts
that open groups lack; until every rollout of it has ended, nothing takes the place of what is done or filtered.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Round:
    """One round of prompts: the groups below `end_group_id`. It `is_issued` while its tasks are going out."""

    end_group_id: int = 0
    is_issued: bool = False

    def advance(self, *, is_idle: bool, next_group_id: int, num_missing: int) -> None:
        """Begin the next round of `num_missing` groups if this one went out and nothing is under way (`is_idle`)."""
        if not self.is_issued and is_idle:
            self.is_issued = True
            self.end_group_id = next_group_id + num_missing

    def includes(self, group_id: int) -> bool:
        """Whether a new group of this id belongs to the round."""
        return group_id < self.end_group_id

    def complete(self) -> None:
        """Everything of the round has gone out."""
        self.is_issued = False
