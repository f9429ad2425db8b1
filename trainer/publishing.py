"""Publishing weights and telling what they are, by the identity that the run began with.

| `weights_identity` of genesis | a sha256 is of | a version is stored as |
| --- | --- | --- |
| `content` | the tensors | manifest and shards |
| `file`, runs that began before there were manifests | one safetensors file | that file |

A run keeps its identity: redo, replay and audit compare what was recorded. Either way tensors are written while the
engine hands them over; no more than one of them is copied at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.versions.identity import digest_of_export
from rollog.kernel.versions.single_file import file_digest_of_export

if TYPE_CHECKING:
    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion
    from trainer.engines.ports import TrainingEngine

new_identity = "content"
"""Of runs that begin now."""


def publish_weights(
    store: WeightsStore, version: int, engine: TrainingEngine, identity: str
) -> WeightVersion:
    """Store the engine's weights as a version. Raises WeightsError, and EngineError for a NaN."""
    if identity == "file":
        return store.publish(version, engine.export_weights)
    return store.publish_tensors(version, engine.export_weights)


def weights_sha256(engine: TrainingEngine, identity: str) -> str:
    """What the ledger would say of the engine's weights; nothing is stored. Raises EngineError for a NaN."""
    if identity == "file":
        return file_digest_of_export(engine.export_weights)
    return digest_of_export(engine.export_weights)
