"""Letting versions of a stopped run go, as its trainer would: under the trainer's transactional id.

Whoever is in charge of a run is fenced by it, so the run must be quiet. Produces a `TrainerEpoch` on `control` and
`WeightsPruned` on `weights`; deletes files of the store afterwards. On a crash in between, asking for the same again
deletes the rest.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consumers.named_weights import read_named_weights
from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import ConfigError, LedgerError
from rollog.kernel.store_owner import store_rights
from rollog.kernel.versions.belonging import belonging
from rollog.run.local_run import run_directory
from rollog.run.quiet_run import quiet_seconds_of, require_quiet
from rollog.run.role_settings import trainer_settings
from rollog.run.supervisor_lock import sole_supervisor
from schemas import WeightsPruned
from trainer.checkpoints import CheckpointStore
from trainer.ledger.writer import LedgerWriter
from trainer.recorded.history import read_history
from trainer.settings import settings_at
from trainer.weights_deletion import delete_files, names_to_delete, unnamed, versions_to_prune
from trainer.weights_keeping import most_in_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from consumers.named_weights import NamedWeights
    from rollog.kernel.store_owner import StoreRights
    from rollog.rules.kept_weights import KeepingRule
    from rollog.run.recorded_run import RecordedRun
    from trainer.settings import TrainerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPruning:
    """What may go of a run's weights, as far as its log was read.

    `versions` are to be named as pruned. `files` are theirs, those that pruned ones have left, and those that no notice
    names.
    """

    run: RecordedRun
    in_force: TrainerSettings
    rule: KeepingRule
    named: NamedWeights
    lag: int
    checkpoints: Sequence[int]
    orphans: tuple[str, ...]

    @classmethod
    def of(
        cls, run: RecordedRun, home: Path, *, keep_newest: int | None = None, keep_every: int | None = None
    ) -> WeightsPruning:
        """Look at what there is, by the rule in force with what is asked for in its place; nothing is changed.

        Raises ConfigError where all versions are kept, or the files are another's, and LedgerError before genesis.
        """
        history = read_history(run.broker, run.topics)
        ledger = history.state
        if not ledger.has_genesis:
            raise LedgerError("the ledger has not begun: there is no version yet")
        in_force = settings_at(trainer_settings(run.settings, run.manifest, home), ledger, ledger.revision)
        rule = _rule(in_force, keep_newest, keep_every)
        rights = store_rights(
            run.broker, run.topics, run.store, home, is_by_content=history.weights_identity == "file"
        )
        if not rights.may_prune:
            raise ConfigError(f"no weights of run {run.topics.run} are deleted: {rights.reason}")
        named = read_named_weights(run.broker, run.topics, ledger.weights)
        return cls(
            run=run,
            in_force=in_force,
            rule=rule,
            named=named,
            lag=math.ceil(ledger.alpha),
            checkpoints=[each.version for each in CheckpointStore(in_force.checkpoints).complete()],
            orphans=_orphans(run, rights, named),
        )

    @property
    def versions(self) -> list[int]:
        """Those that the rule lets go and that are not pruned yet."""
        return versions_to_prune(self.named, self.rule, lag=self.lag, checkpoints=self.checkpoints)

    def lines(self) -> list[str]:
        """What would be deleted, for a person."""
        versions, store = self.versions, self.run.store
        going = {notice.name for notice in self.named.notices if notice.version in set(versions)}
        names = belonging(store.names(), going | self._left())
        kept = sorted(self.named.stored.keys() - set(versions))
        found = [
            f"versions that stay: {_ranges(kept)}",
            f"versions that go: {_ranges(versions)}",
            f"{len(names)} files of theirs and of versions pruned before, in {store.public_uri}",
        ]
        if self.orphans:
            found.append(f"{len(self.orphans)} files that no notice names")
        return found

    def has_work(self) -> bool:
        """Whether anything would change."""
        left = belonging(self.run.store.names(), self._left())
        return bool(self.versions or left or self.orphans)

    def delete(self) -> int:
        """Delete what pruned versions have left, and what no notice named before and after the fencing; how many."""
        store = self.run.store
        return delete_files(store, [*belonging(store.names(), self._left()), *self.orphans])

    def _left(self) -> set[str]:
        return names_to_delete(self.named, self.rule, lag=self.lag, checkpoints=self.checkpoints)


def prune_weights(
    run: RecordedRun,
    home: Path,
    *,
    keep_newest: int | None = None,
    keep_every: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Let versions go; yields lines that say so. Raises as `WeightsPruning.of`, ConfigError where a role works.

    Raises Superseded or Expired where a trainer takes the run over meanwhile: it goes on with the rest.
    """
    with sole_supervisor(run_directory(run.settings, home), run.topics.run):
        require_quiet(
            run.broker,
            run.topics,
            done="pruned",
            quiet_seconds=quiet_seconds_of(run.settings),
            sleep=sleep,
        )
        before = WeightsPruning.of(run, home, keep_newest=keep_newest, keep_every=keep_every)
        with LedgerWriter(
            run.broker,
            run.topics,
            transaction_timeout_seconds=before.in_force.trainer.transaction_timeout_seconds,
            max_record_bytes=before.in_force.broker.max_record_bytes,
        ) as writer:
            yield f"in charge of run {run.topics.run}: a trainer that was suspended can commit nothing any more"
            # Nobody else commits from here on, so what is unnamed now stays so.
            now = WeightsPruning.of(run, home, keep_newest=keep_newest, keep_every=keep_every)
            now = replace(now, orphans=tuple(name for name in before.orphans if name in now.orphans))
            versions = now.versions
            for first in range(0, len(versions), most_in_record):
                record = WeightsPruned(versions=tuple(versions[first : first + most_in_record]))
                writer.announce(record)
                now.named.add(record)
            reach(CrashPoint.PRUNE_COMMITTED)
            yield f"named as pruned on {run.topics.weights}: {_ranges(versions)}"
            yield f"deleted {now.delete()} files in {run.store.public_uri}"


def _rule(in_force: TrainerSettings, keep_newest: int | None, keep_every: int | None) -> KeepingRule:
    rule = in_force.keeping_rule
    rule = replace(
        rule,
        newest=rule.newest if keep_newest is None else keep_newest,
        every=rule.every if keep_every is None else keep_every,
    )
    if rule.keeps_all:
        raise ConfigError(
            f"run {in_force.run} keeps all versions (trainer.keep_newest_weights = 0): say how many of the newest stay "
            "with --keep-newest N"
        )
    return rule


def _orphans(run: RecordedRun, rights: StoreRights, named: NamedWeights) -> tuple[str, ...]:
    if not rights.may_sweep or named.num_unreadable:
        return ()
    return tuple(unnamed([*run.store.names(), *run.store.partial_names()], named))


def _ranges(versions: Sequence[int]) -> str:
    """`1-3, 7` for versions in their order."""
    found: list[list[int]] = []
    for version in versions:
        if found and version == found[-1][-1] + 1:
            found[-1].append(version)
        else:
            found.append([version])
    texts = [str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in found]
    return ", ".join(texts) or "none"
