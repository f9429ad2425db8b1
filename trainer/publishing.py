"""Publishing weights and telling what they are, by the identity that the run began with.

| `weights_identity` of genesis | a sha256 is of | a version is stored as |
| --- | --- | --- |
| `content` | the tensors | manifest and shards, in full or as what changed since the version before |
| `file`, runs that began before there were manifests | one safetensors file | that file |

A run keeps its identity: redo, replay and audit compare what was recorded. A version is published in two parts. It is
sealed on the training thread: its tensors are copied into host memory, and the engine may go on. It is written on any
thread, from host memory: shards, digests, manifest, all durable. What fails there can be written again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rollog.kernel.errors import WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.versions.chains import StoredForm, VersionPair, is_cumulative_due, why_full
from rollog.kernel.versions.identity import by_name, digest_of_export
from rollog.kernel.versions.shards import shard_bytes
from rollog.kernel.versions.single_file import file_digest_of_export
from trainer.host_copy import HostCopy
from trainer.noted_changes import NotedChanges, may_pay
from trainer.right_of_way import RightOfWay
from trainer.since_full import ChangesLostError, ChangesSinceFull
from trainer.weights_probe import probe_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.identity import TensorDigest
    from rollog.kernel.versions.patch_shards import PatchSink
    from rollog.kernel.versions.patches import TensorPatch
    from rollog.kernel.versions.tensors import Export, TensorSpec
    from rollog.kernel.weights import WeightsStore
    from schemas import WeightsProbe, WeightVersion
    from trainer.engines.ports import TrainingEngine
    from trainer.host_copy import Compare

    MakePatch = Callable[[TensorSpec, memoryview], TensorPatch]
    """How a tensor with these bytes is stored."""

    _Digests = dict[TensorSpec, TensorDigest]

log = get_logger("trainer")

new_identity = "content"
"""Of runs that begin now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenWeights:
    """A version in the store, with the forms that make it, the full one first, whose notice is `full_notice`."""

    notice: WeightVersion
    full_notice: WeightVersion
    forms: tuple[StoredForm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPlan:
    """What makes a version of the one before it. Without `changes` the host copy still has both to compare."""

    base: WrittenWeights
    changes: NotedChanges | None


@dataclass(frozen=True, slots=True)
class SealedWeights:
    """A version whose tensors are in the host copy, until the next one is sealed.

    Without `patch` it is stored in full. `probe` goes into its notices.
    """

    version: int
    patch: PatchPlan | None = None
    probe: WeightsProbe | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """A version that is in the store: one commit names all forms of it.

    `notice` is what a reader takes that has the version before; `cumulative`, for one that has nothing or an old one,
    is of the changes since the last full form, and what the next patch is based on.
    """

    notice: WeightVersion
    cumulative: WeightVersion | None = None

    @property
    def notices(self) -> tuple[WeightVersion, ...]:
        """Of all forms."""
        return (self.notice,) if self.cumulative is None else (self.notice, self.cumulative)

    def with_probe(self, probe: WeightsProbe | None) -> PublishedWeights:
        """The same with a probe in every notice."""
        cumulative = None if self.cumulative is None else replace(self.cumulative, probe=probe)
        return PublishedWeights(notice=replace(self.notice, probe=probe), cumulative=cumulative)


class _OutgrownError(Exception):
    """A patch does not pay, or what it would be made of is not there any more."""


class WeightsPublisher:
    """Publishes the versions of one trainer, one at a time.

    `identity` is asked when a version is sealed or written: what a run began with is known once its ledger is read.
    With `patches` a version is stored as what changed since the one that this publisher wrote before it, where that
    pays (`rollog.kernel.versions.chains.why_full`). The first one that a trainer writes is stored in full. Versions of
    at most `most_kept_bytes` are compared beside training, from two host copies.
    """

    def __init__(
        self,
        store: WeightsStore,
        identity: Callable[[], str],
        *,
        patches: bool = True,
        first: Callable[[], WeightVersion | None] = lambda: None,
        most_kept_bytes: int = shard_bytes,
    ) -> None:
        self._store = store
        self._identity = identity
        self._has_patches = patches
        self._most_kept_bytes = most_kept_bytes
        self._way = RightOfWay()
        self._copy = HostCopy(most_kept_bytes=most_kept_bytes, give_way=self._give_way)
        self._written: WrittenWeights | None = None
        self._since_full = ChangesSinceFull()
        self._adapter: Adapter | None = None
        """Of what is in the copy."""
        self._find_first = first
        self._first: tuple[WeightVersion, Mapping[str, TensorDigest]] | None = None
        self._table: tuple[TensorSpec, ...] = ()
        """Of the version that was in the copy before the one that is there."""

    def seal(self, version: int, engine: TrainingEngine) -> SealedWeights:
        """Copy the engine's weights; afterwards `write` needs nothing of the engine, and gives way to its copies.

        Call only when the version before is written, and is what the next one is trained from. Raises EngineError for a
        NaN.
        """
        self._way = engine.way
        base, changes = self._base_of(version), NotedChanges()
        self._fill(version, engine, compare=None if base is None else changes.note)
        probe = probe_of(engine)
        if base is None or changes.are_too_many or self._copy.table != self._table:
            return SealedWeights(version, probe=probe)
        plan = PatchPlan(base=base, changes=None if self._copy.has_before else changes)
        return SealedWeights(version, plan, probe)

    def write(self, sealed: SealedWeights) -> PublishedWeights:
        """Store what was sealed; when this returns, it is durable. Each call writes it whole, under a new name.

        Raises WeightsError, after which it may be called again, and ValueError where another version was sealed since.
        """
        if self._copy.version != sealed.version:
            raise ValueError(f"version {sealed.version} cannot be written: the copy holds another one by now")
        return self._stored(sealed).with_probe(sealed.probe)

    def publish(self, version: int, engine: TrainingEngine) -> WeightVersion:
        """Seal and write in full, with nothing beside. Raises WeightsError, and EngineError for a NaN."""
        self._fill(version, engine, compare=None)
        self.forget_base()
        probe = probe_of(engine)
        return self._stored_in_full(version).with_probe(probe).notice

    def forget_base(self) -> None:
        """Let the next version be sealed as a full one: the store has lost what it would be based on.

        Whether it still has version 0, beside which adapters are stored, is looked at anew.
        """
        self._written = self._first = None

    def tidy(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Prepare for the version that is stored as all changes since the full form, until it `is_over`.

        On the thread that writes, when nobody waits for a version. `is_over` is asked on several threads.
        """
        written = self._written
        if written is None or why_full(written.notice.version + 1, written.forms) is not None:
            return
        is_next = is_cumulative_due(written.notice.version + 1, written.forms)
        self._since_full.fold(is_over, is_next=is_next)

    def _give_way(self) -> None:
        self._way.give_to_copies()

    def _stored(self, sealed: SealedWeights) -> PublishedWeights:
        if sealed.patch is not None:
            with suppress(_OutgrownError, ChangesLostError):
                return self._write_patch(sealed.version, sealed.patch)
            if sealed.patch.changes is not None:
                sealed.patch.changes.let_go()  # a store elsewhere takes as much memory for the full form
        if (
            self._has_patches
            and self._adapter is not None
            and (notice := self._stored_beside_first(sealed.version)) is not None
        ):
            return PublishedWeights(notice=notice)
        return self._stored_in_full(sealed.version)

    def _stored_in_full(self, version: int) -> PublishedWeights:
        notice = publish_export(self._store, version, self._copy.export, self._identity(), self._adapter)
        self._since_full.restart()
        self._note_written(notice, ())
        return PublishedWeights(notice=notice)

    def _fill(self, version: int, engine: TrainingEngine, *, compare: Compare | None) -> None:
        self._table = self._copy.table
        self._adapter = engine.describe().adapter
        # Runs with single files were never refused for a NaN, and may have one where no token ever comes.
        self._copy.fill(
            version, engine.export_weights, compare=compare, allows_nan=self._identity() == "file"
        )

    def _base_of(self, version: int) -> WrittenWeights | None:
        """What the next version may be a patch of: the copy still holds it, and nothing is in the way."""
        written = self._written
        if not self._has_patches or self._identity() == "file" or written is None:
            return None
        if self._adapter is not None:
            return None  # they are stored beside version 0
        if self._copy.version != written.notice.version or not may_pay(self._copy.table):
            return None
        return None if why_full(version, written.forms) is not None else written

    def _stored_beside_first(self, version: int) -> WeightVersion | None:
        """Store what differs from version 0, which is what was trained; None where that cannot be a base."""
        if version == 0 or (first := self._first_version()) is None:
            return None
        notice, base = first

        def write(sink: PatchSink) -> None:
            self._copy.export(_Beside(sink, base))

        return self._store.publish_patch(version, notice, write, adapter=self._adapter)

    def _first_version(self) -> tuple[WeightVersion, Mapping[str, TensorDigest]] | None:
        """The notice of version 0 and its tensors; None where it is not whole, or holds other tensors."""
        if self._first is None and (notice := self._find_first()) is not None and self._store.has(notice):
            try:
                self._first = notice, by_name(self._store.tensor_digests(notice))
            except WeightsError as error:
                log.warning("versions are stored in full: version 0 cannot be read", error=str(error))
        if self._first is None or {each.spec for each in self._first[1].values()} != set(self._copy.table):
            return None
        return self._first

    def _write_patch(self, version: int, plan: PatchPlan) -> PublishedWeights:
        since_full, base = self._since_full, plan.base
        is_cumulative = is_cumulative_due(version, base.forms)
        if is_cumulative and not since_full.has_all:
            raise ChangesLostError
        changes = self._compared() if plan.changes is None else plan.changes
        if changes.are_too_many:
            raise _OutgrownError

        def patch(spec: TensorSpec, data: memoryview) -> TensorPatch:
            found = changes.patch(spec, data)
            since_full.add(spec, found)
            return found

        def all_patches(spec: TensorSpec, data: memoryview) -> TensorPatch:
            patch(spec, data)
            return since_full.together(spec)

        since_full.begin(together=is_cumulative)
        digests: _Digests = {}
        publish = partial(self._publish_patch, version, digests=digests)
        if not is_cumulative:
            notice = publish(base.notice, base.forms, patch)
            since_full.keep()
            self._note_written(notice, base.forms)
            return PublishedWeights(notice=notice)
        # First, since it may not pay.
        cumulative = publish(base.full_notice, base.forms[:1], all_patches)
        notice = publish(base.notice, base.forms, lambda spec, _: since_full.newest(spec))
        since_full.keep()
        self._note_written(cumulative, base.forms[:1])
        return PublishedWeights(notice=notice, cumulative=cumulative)

    def _compared(self) -> NotedChanges:
        """What changed since the version before, which the copy still has unless another one was published since."""
        if not self._copy.has_before:
            raise _OutgrownError
        changes = NotedChanges(most_bytes=self._most_kept_bytes)
        self._copy.show_before(changes.note)
        return changes

    def _publish_patch(
        self,
        version: int,
        base: WeightVersion,
        forms: Sequence[StoredForm],
        patch: MakePatch,
        *,
        digests: _Digests,
    ) -> WeightVersion:
        """Store a patch of `base`, which `forms` rebuild. Raises _OutgrownError where it does not pay."""

        def write(sink: PatchSink) -> None:
            self._copy.export(_Patched(sink, patch, digests))
            if why_full(version, forms, patch_bytes=sink.stored_bytes) is not None:
                raise _OutgrownError

        return self._store.publish_patch(version, base, write)

    def _note_written(self, notice: WeightVersion, before: tuple[StoredForm, ...]) -> None:
        form = StoredForm(
            pair=VersionPair(notice.version, notice.sha256),
            name=notice.name,
            stored_bytes=notice.stored_bytes,
            base=None if notice.base is None else VersionPair(notice.base.version, notice.base.sha256),
        )
        full = notice if self._written is None or not before else self._written.full_notice
        self._written = WrittenWeights(notice=notice, full_notice=full, forms=(*before, form))


class _Beside:
    """Hands tensors on as what differs from a base whose digests are known."""

    def __init__(self, sink: PatchSink, base: Mapping[str, TensorDigest]) -> None:
        self._sink = sink
        self._base = base

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Nothing depends on the table before its tensors come."""
        del table

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """One tensor."""
        self._sink.add_beside(spec, data, self._base.get(spec.name))


class _Patched:
    """Hands tensors on with what changed of them. Digests that are not in `digests` are taken, and put there."""

    def __init__(self, sink: PatchSink, patch: MakePatch, digests: _Digests) -> None:
        self._sink = sink
        self._patch = patch
        self._digests = digests

    def begin(self, table: Sequence[TensorSpec]) -> None:
        """Nothing depends on the table before its tensors come."""
        del table

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        """One tensor."""
        known = self._digests.get(spec)
        if known is None:
            self._digests[spec] = self._sink.add(spec, data, lambda: self._patch(spec, data))
        else:
            self._sink.add_hashed(known, data, self._patch(spec, data))


def publish_export(
    store: WeightsStore, version: int, export: Export, identity: str, adapter: Adapter | None = None
) -> WeightVersion:
    """Store as a version what is exported, without a copy of it. Raises WeightsError, and EngineError for a NaN."""
    if identity == "file":
        return store.publish(version, export)
    return store.publish_tensors(version, export, adapter=adapter)


def weights_sha256(engine: TrainingEngine, identity: str) -> str:
    """What the ledger would say of the engine's weights; nothing is stored. Raises EngineError for a NaN."""
    if identity == "file":
        return file_digest_of_export(engine.export_weights)
    return digest_of_export(engine.export_weights, engine.describe().adapter)
