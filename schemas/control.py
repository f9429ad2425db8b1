"""Records of the `control` topic: who works as dispatcher and trainer, and what the dispatcher says about the run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherEpoch:
    """A dispatcher took over; it alone writes under this epoch."""

    epoch: int
    dispatcher_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEpoch:
    """A trainer took over; those of lower epochs end. Dispatchers count theirs apart."""

    epoch: int
    trainer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The tasks partition of one worker incarnation, to be read from `start_offset` on."""

    grant_id: str
    epoch: int
    worker_id: str
    partition: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """A grant ended; its holder ends its open tasks as expired."""

    grant_id: str
    epoch: int
    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEnd:
    """No group after `last_group_id` will be issued (-1: none was)."""

    epoch: int
    last_group_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Workers were told to stop and every task has ended or been declared lost."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClosed:
    """The ledger holds its `close` record; whoever reads this exits."""

    epoch: int
