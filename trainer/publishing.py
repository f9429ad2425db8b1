"""Publishing weights and telling what they are, by the identity that the run began with.

| `weights_identity` of genesis | a sha256 is of | a version is stored as |
| --- | --- | --- |
| `content` | the tensors | manifest and shards |
| `file`, runs that began before there were manifests | one safetensors file | that file |

A run keeps its identity: redo, replay and audit compare what was recorded. A version is published in two parts. It is
sealed on the training thread: its tensors are copied into host memory, and the engine may go on. It is written on any
thread, from that copy: shards, digests, manifest, all durable. What fails there can be written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.versions.identity import digest_of_export
from rollog.kernel.versions.single_file import file_digest_of_export
from trainer.host_copy import HostCopy

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.versions.tensors import Export
    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion
    from trainer.engines.ports import TrainingEngine

new_identity = "content"
"""Of runs that begin now."""


@dataclass(frozen=True, slots=True)
class SealedWeights:
    """A version whose tensors are in the host copy, until the next one is sealed."""

    version: int


class WeightsPublisher:
    """Publishes the versions of one trainer, one at a time.

    `identity` is asked when a version is sealed or written: what a run began with is known once its ledger is read.
    """

    def __init__(self, store: WeightsStore, identity: Callable[[], str]) -> None:
        self._store = store
        self._identity = identity
        self._copy = HostCopy()

    def seal(self, version: int, engine: TrainingEngine) -> SealedWeights:
        """Copy the engine's weights; afterwards `write` needs nothing of the engine.

        Call only when the version before is written. Raises EngineError for a NaN.
        """
        # Runs with single files were never refused for a NaN, and may have one where no token ever comes.
        self._copy.fill(version, engine.export_weights, allows_nan=self._identity() == "file")
        return SealedWeights(version)

    def write(self, sealed: SealedWeights) -> WeightVersion:
        """Store what was sealed; when this returns, it is durable. Each call writes it whole, under a new name.

        Raises WeightsError, after which it may be called again, and ValueError where another version was sealed since.
        """
        if self._copy.version != sealed.version:
            raise ValueError(f"version {sealed.version} cannot be written: the copy holds another one by now")
        return publish_export(self._store, sealed.version, self._copy.export, self._identity())

    def publish(self, version: int, engine: TrainingEngine) -> WeightVersion:
        """Seal and write, with nothing beside. Raises WeightsError, and EngineError for a NaN."""
        return self.write(self.seal(version, engine))


def publish_export(store: WeightsStore, version: int, export: Export, identity: str) -> WeightVersion:
    """Store as a version what is exported, without a copy of it. Raises WeightsError, and EngineError for a NaN."""
    if identity == "file":
        return store.publish(version, export)
    return store.publish_tensors(version, export)


def weights_sha256(engine: TrainingEngine, identity: str) -> str:
    """What the ledger would say of the engine's weights; nothing is stored. Raises EngineError for a NaN."""
    if identity == "file":
        return file_digest_of_export(engine.export_weights)
    return digest_of_export(engine.export_weights)
