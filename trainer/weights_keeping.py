"""What a trainer does for the weights store: lets versions go by the run's rule, deletes what nobody names, mends.

Consumes nothing but what it was given to know (`NamedWeights`); produces `WeightsPruned` and second notices, each in a
transaction of its own. Waits for nothing. Only whoever holds the trainer's transactional id deletes: a file goes only
after a commit that succeeded later than the decision about it, and a trainer that was replaced commits nothing.

| what | decided by | then |
| --- | --- | --- |
| a version that the rule does not name | `WeightsPruned` is committed | its files are deleted, the manifest first |
| a file that no notice names | it is listed, anything is committed, still none names it | it is deleted |
| the newest version, with files gone or cut | the trainer has no batch, and stands at it | full, under new names |
| the same | the trainer is ahead | the next version is full, based on nothing |

On a crash between a commit and the deletion the next trainer deletes: a version that is said to be pruned, and that its
own rule does not name, is looked for once at its start.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.disk_room import free_bytes
from rollog.kernel.errors import WeightsError, WeightsStoreSilent
from rollog.kernel.logs import get_logger
from rollog.kernel.versions.belonging import belonging
from schemas import WeightsPruned
from trainer.orphan_sweep import OrphanSweep
from trainer.published_again import PublishAgain
from trainer.weights_deletion import delete_files, names_to_delete, versions_to_prune

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from consumers.named_weights import NamedWeights
    from rollog.kernel.store_owner import StoreRights
    from rollog.kernel.weights import WeightsStore
    from rollog.rules.kept_weights import KeepingRule
    from schemas import WeightVersion

log = get_logger("trainer")

_seconds_between_looks = 5.0
_seconds_between_mends = 30.0
most_in_record = 10_000
"""Versions that one `WeightsPruned` names."""
_least_room_versions = 3
"""With room for fewer it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What a keeper works with, all of one run.

    `announce` commits a record of `weights`; `publish` stores the engine's weights in full as a version, `forget_base`
    lets the next one be full. `lag` is how many versions behind samples may be now, `checkpoints` are the versions of
    complete ones.
    """

    store: WeightsStore
    rights: StoreRights
    named: NamedWeights
    rule: KeepingRule
    grace_seconds: float
    announce: Callable[[WeightVersion | WeightsPruned], None]
    publish: Callable[[int], WeightVersion]
    forget_base: Callable[[], None]
    lag: Callable[[], int]
    checkpoints: Callable[[], Collection[int]]
    clock: Callable[[], float]
    free_bytes: Callable[[Path], int] = free_bytes


class WeightsKeeper:
    """Keeps the store of one run in order. Call from one thread, `look` with no version being written.

    Errors of the store are logged, and what they held up is tried again later; those of a commit are let through.
    """

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._orphans = OrphanSweep(keeping.store, keeping.rights, keeping.named)
        self._publish_again = PublishAgain(
            store=keeping.store, publish=keeping.publish, announce=keeping.announce
        )
        now = keeping.clock()
        # When versions before this start were superseded is not known: their readers get the whole time of grace.
        self._superseded = dict.fromkeys(keeping.named.stored, now)
        self._newest = max(keeping.named.stored, default=-1)
        self._superseded.pop(self._newest, None)
        self._next_look = self._next_mend = now
        self._may_have_pruned_files = True
        self._is_short_of_room = False

    def committed(self, *notices: WeightVersion) -> None:
        """A transaction of this trainer succeeded, with the notices of one version in it if any."""
        self._orphans.committed()
        if not notices:
            return
        for notice in notices:
            self._keeping.named.add(notice)
        if notice.version > self._newest:
            self._superseded[self._newest] = self._keeping.clock()
            self._newest = notice.version
        self._say_room(notice)
        self._next_look = -math.inf

    def look(self, *, is_idle: bool) -> None:
        """Do what is due. No version is being written; with `is_idle` the engine stands at the newest one.

        Raises what committing does; LedgerError where the engine has other weights than the ledger.
        """
        now = self._keeping.clock()
        if now < self._next_look:
            return
        self._next_look = now + _seconds_between_looks
        with _logged_trouble():
            self._orphans.sweep()
            self._prune(now)
            self._delete_pruned()
            self._orphans.list_if_due(now)
        if now >= self._next_mend:
            self._next_mend = now + _seconds_between_mends
            with _logged_trouble():
                self._mend(is_idle=is_idle)

    @contextmanager
    def last_sweep(self) -> Iterator[None]:
        """Around the last commit of a run: what no notice names before and after it is deleted."""
        with _logged_trouble():
            self._orphans.list_now()
        yield
        with _logged_trouble():
            self._orphans.sweep()

    def _prune(self, now: float) -> None:
        keeping = self._keeping
        if keeping.rule.keeps_all or not keeping.rights.may_prune:
            return
        grace = keeping.grace_seconds
        gone = versions_to_prune(
            keeping.named,
            keeping.rule,
            lag=keeping.lag(),
            checkpoints=keeping.checkpoints(),
            young=[version for version, since in self._superseded.items() if now - since < grace],
        )[:most_in_record]
        if not gone:
            return
        record = WeightsPruned(versions=tuple(gone))
        keeping.announce(record)
        reach(CrashPoint.PRUNE_COMMITTED)
        keeping.named.add(record)
        self._orphans.committed()
        for version in gone:
            self._superseded.pop(version, None)
        self._may_have_pruned_files = True
        log.info("versions let go", versions=gone, newest=self._newest)

    def _delete_pruned(self) -> None:
        """Delete what pruned versions have left. What the rule names stays, whoever said that it was pruned."""
        keeping = self._keeping
        if not self._may_have_pruned_files or keeping.rule.keeps_all or not keeping.rights.may_prune:
            return
        names = names_to_delete(
            keeping.named, keeping.rule, lag=keeping.lag(), checkpoints=keeping.checkpoints()
        )
        if names:
            delete_files(keeping.store, belonging(keeping.store.names(), names))
        self._may_have_pruned_files = False

    def _mend(self, *, is_idle: bool) -> None:
        keeping, notice = self._keeping, self._keeping.named.get(self._newest)
        directory = keeping.store.directory
        if directory is not None and not directory.is_dir():
            # Taken away as a whole, as a disk that is not mounted is. What is written now hides what comes back.
            raise WeightsStoreSilent(f"{directory} is not there: mount it, or restore it from a copy")
        if notice is None or keeping.store.has(notice):
            return
        if not is_idle:
            keeping.forget_base()
            return
        again = self._publish_again(notice.version, notice.sha256, notice)
        if again != notice:
            keeping.named.add(again)

    def _say_room(self, notice: WeightVersion) -> None:
        """Say once that the disk of the store will soon be full, before a version finds it so."""
        directory = self._keeping.store.directory
        if directory is None:
            return
        num_versions = self._keeping.free_bytes(directory) // max(1, notice.num_bytes)
        is_short = num_versions < _least_room_versions
        if is_short and not self._is_short_of_room:
            log.warning(
                "the disk of the weights store has little room; make some, or let versions go "
                "(trainer.keep_newest_weights)",
                store=self._keeping.store.public_uri,
                room_for_versions=num_versions,
            )
        self._is_short_of_room = is_short


@contextmanager
def _logged_trouble() -> Iterator[None]:
    """Errors of the store, logged: housekeeping can wait."""
    try:
        yield
    except WeightsError as error:
        log.warning("the weights store is not kept in order now", error=str(error))
