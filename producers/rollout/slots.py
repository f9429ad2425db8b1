"""The engine's slots, and beside them the places of rollouts that are being scored. Pure."""

from __future__ import annotations


class Slots:
    """What each started task of a worker holds; all replicas of a task move on together.

    | a task is  | it holds, per replica | until                                                     |
    | ---        | ---                   | ---                                                       |
    | generating | a slot                | the tokens of its last replica are there                  |
    | waiting    | a slot                | there are scoring places for all its replicas             |
    | scored     | a scoring place       | its last sample is on its way                             |

    At most `max_scoring` rollouts have left their slots and are not scored yet: that bounds what a worker remembers
    when the judge is slower than the engine.

    Example with 2 slots and 1 scoring place. A and B generate. A's tokens are there: it gets the place, its slot is
    free, C starts. B's tokens are there: it is scored, too, but keeps its slot. A's sample is on its way: B gets the
    place, and its slot is free.
    """

    def __init__(self, capacity: int, max_scoring: int) -> None:
        self._capacity = capacity
        self._max_scoring = max_scoring
        self._generating: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._scored: dict[str, int] = {}
        self.num_used = 0
        """Slots in use."""
        self.num_scoring = 0
        """Scoring places in use."""

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return self.num_used >= self._capacity

    @property
    def num_generating(self) -> int:
        """Slots in which tokens are made."""
        return sum(self._generating.values())

    def is_generating(self, task_id: str) -> bool:
        """Whether tokens of a task are still to come."""
        return task_id in self._generating

    def fits(self, num_replicas: int) -> bool:
        """Whether a task of so many replicas may start: one larger than the capacity only where no slot is used."""
        return not self.num_used or self.num_used + num_replicas <= self._capacity

    def take(self, task_id: str, num_replicas: int) -> None:
        """A task starts."""
        self._generating[task_id] = num_replicas
        self.num_used += num_replicas

    def generated(self, task_id: str) -> None:
        """All tokens of a task are there."""
        self._waiting[task_id] = self._generating.pop(task_id)
        self._give_places()

    def ended(self, task_id: str) -> None:
        """The last sample of a generated task is on its way."""
        if task_id in self._waiting:
            self.num_used -= self._waiting.pop(task_id)
        else:
            self.num_scoring -= self._scored.pop(task_id)
        self._give_places()

    def _give_places(self) -> None:
        # In order of their tokens' end. One that needs more places than are free is passed over: it loses nothing but
        # time, and ends from where it is.
        for task_id, num_replicas in list(self._waiting.items()):
            if self.num_scoring + num_replicas <= self._max_scoring:
                self._scored[task_id] = self._waiting.pop(task_id)
                self.num_scoring += num_replicas
                self.num_used -= num_replicas
