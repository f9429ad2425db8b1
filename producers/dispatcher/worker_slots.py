"""Which workers can take tasks, and how many: kept up to date, so that a turn does not look at every worker. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.dispatcher.credits import FreeSlots

if TYPE_CHECKING:
    from producers.dispatcher.credits import Candidate, CreditLedger
    from producers.dispatcher.workers import WorkerRegistry


class WorkerSlots:
    """The workers of a registry by the slots that a ledger leaves them.

    `refresh` looks at those of which anything changed: a heartbeat, a grant, a task that was issued or ended. `able`
    are all that serve a version, `free` those of them with free slots, `granted` all that hold a grant under a lease
    that runs. What is taken from `free` while tasks are issued, the next `refresh` counts anew.
    """

    def __init__(self, workers: WorkerRegistry, ledger: CreditLedger) -> None:
        self._workers = workers
        self._ledger = ledger
        self.able: dict[str, Candidate] = {}
        self.free = FreeSlots(())
        self.granted: set[str] = set()

    def refresh(self) -> None:
        """Take in what changed since the last call."""
        for worker_id in self._workers.take_touched() | self._ledger.take_touched():
            candidate = self._workers.candidate(worker_id, self._ledger)
            self.free.put(worker_id, candidate)
            if candidate is None:
                self.able.pop(worker_id, None)
            else:
                self.able[worker_id] = candidate
            if self._workers.holds_grant(worker_id):
                self.granted.add(worker_id)
            else:
                self.granted.discard(worker_id)
