"""A weights store with a log of its notices, and keepers of it that die where a test wants it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from consumers.named_weights import NamedWeights
from rollog.kernel.store_owner import StoreRights
from rollog.kernel.weights import WeightsStore
from rollog.rules.kept_weights import KeepingRule
from schemas import WeightsPruned
from support.exports import export_of
from trainer.weights_keeping import Keeping, WeightsKeeper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.kernel.versions.tensors import Export
    from schemas import WeightVersion


class Died(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class MortalStore(WeightsStore):
    """A store whose user dies after so many deletions, if a number is given."""

    deletions_left: int | None = None

    def delete(self, name: str) -> None:
        if self.deletions_left == 0:
            raise Died
        if self.deletions_left is not None:
            self.deletions_left -= 1
        super().delete(name)


def tensors_of(version: int) -> Export:
    """The weights of a version; three shards where a shard may hold 400 bytes."""
    draw = torch.Generator().manual_seed(version)
    return export_of({f"layer{number}": torch.randn(100, generator=draw) for number in range(3)})


@dataclass(slots=True)
class KeptRun:
    """A run as far as its keeper sees it: versions, what the log of `weights` says, the store, a clock."""

    store: MortalStore
    weights: dict[int, str] = field(default_factory=dict)
    log: list[WeightVersion | WeightsPruned] = field(default_factory=list)
    now: float = 0.0
    checkpoints: set[int] = field(default_factory=set)
    rule: KeepingRule = field(default_factory=lambda: KeepingRule(newest=2))
    grace_seconds: float = 0.0
    rights: StoreRights = field(default_factory=lambda: StoreRights(may_prune=True, may_sweep=True))
    dies_after_commit: bool = False
    num_unreadable: int = 0
    fencing: Exception | None = None
    is_by_content: bool = False
    before_commit: Callable[[], None] = lambda: None
    free_bytes: int = 1 << 40
    weights_of: Callable[[int], Export] = tensors_of
    num_bases_forgotten: int = 0

    @classmethod
    def at(cls, directory: Path) -> KeptRun:
        return cls(MortalStore(str(directory / "weights" / "run")))

    def keeper(self) -> WeightsKeeper:
        """One that starts now and knows the log."""
        named = NamedWeights(self.weights, num_unreadable=self.num_unreadable)
        for record in self.log:
            named.add(record)
        return WeightsKeeper(
            Keeping(
                store=self.store,
                rights=self.rights,
                named=named,
                rule=self.rule,
                grace_seconds=self.grace_seconds,
                announce=self.announce,
                publish=self.stored,
                forget_base=self.forget_base,
                lag=lambda: 0,
                checkpoints=lambda: self.checkpoints,
                clock=lambda: self.now,
                free_bytes=lambda _: self.free_bytes,
            )
        )

    def forget_base(self) -> None:
        self.num_bases_forgotten += 1

    def announce(self, record: WeightVersion | WeightsPruned) -> None:
        self.before_commit()
        if self.fencing is not None:
            raise self.fencing
        self.log.append(record)
        if self.dies_after_commit:
            raise Died

    def stored(self, version: int) -> WeightVersion:
        if self.is_by_content:
            return self.store.publish(version, self.weights_of(version))
        return self.store.publish_tensors(version, self.weights_of(version), most_bytes=600)

    def commit(self, version: int, keeper: WeightsKeeper | None = None) -> WeightVersion:
        """A step: its version is stored and noticed."""
        notice = self.stored(version)
        self.weights[version] = notice.sha256
        self.log.append(notice)
        if keeper is not None:
            keeper.committed(notice)
        return notice

    def commit_all(self, *versions: int) -> None:
        for version in versions:
            self.commit(version)

    @property
    def newest_notice(self) -> WeightVersion:
        return next(each for each in reversed(self.log) if not isinstance(each, WeightsPruned))

    def path(self, name: str) -> Path:
        """Where a file of the store is."""
        assert self.store.directory is not None
        return self.store.directory / name

    @property
    def versions(self) -> list[int]:
        """Those of which any file is in the store."""
        return sorted({int(name[1:7]) for name in self.store.names()})

    def look(self, keeper: WeightsKeeper, *, is_idle: bool = False, seconds: float = 10.0) -> None:
        self.now += seconds
        keeper.look(is_idle=is_idle)
