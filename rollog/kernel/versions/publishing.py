"""Writing a version, in full or as what changed since another one, and its notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.versions.chains import VersionPair
from rollog.kernel.versions.manifest import manifest_format, manifest_sha256, new_manifest_name
from rollog.kernel.versions.patch_manifest import PatchBase
from rollog.kernel.versions.patch_shards import PatchSink
from rollog.kernel.versions.shards import ShardedSink, shard_bytes
from schemas.weights import WeightsBase, WeightVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.shards import VersionFiles
    from rollog.kernel.versions.tensors import Export


def publish_full(
    files: VersionFiles,
    version: int,
    export: Export,
    *,
    adapter: Adapter | None = None,
    most_bytes: int = shard_bytes,
) -> WeightVersion:
    """Store all tensors; when this returns, they are durable. Raises WeightsError, and EngineError for a NaN."""
    name = new_manifest_name(version)
    with ShardedSink(files, name, adapter=adapter, most_bytes=most_bytes) as sink:
        export(sink)
        manifest, text = sink.finish()
    return WeightVersion(
        version=version,
        sha256=manifest.digest,
        name=name,
        num_bytes=manifest.num_bytes,
        format=manifest_format,
        manifest_sha256=manifest_sha256(text),
        stored_bytes=len(text) + sum(shard.num_bytes for shard in manifest.shards),
    )


def publish_patch(
    files: VersionFiles,
    version: int,
    base: WeightVersion,
    write: Callable[[PatchSink], None],
    *,
    adapter: Adapter | None = None,
    most_bytes: int = shard_bytes,
) -> WeightVersion:
    """Store what changed since `base`, a manifest; `write` hands all tensors over. Raises as `publish_full`.

    What `write` raises comes out, and nothing is left of the patch.
    """
    name = new_manifest_name(version)
    patch_base = PatchBase(
        pair=VersionPair(base.version, base.sha256),
        name=base.name,
        manifest_sha256=base.manifest_sha256,
    )
    with PatchSink(files, name, patch_base, adapter=adapter, most_bytes=most_bytes) as sink:
        write(sink)
        manifest, text = sink.finish()
    return WeightVersion(
        version=version,
        sha256=manifest.digest,
        name=name,
        num_bytes=manifest.num_bytes,
        format=manifest_format,
        manifest_sha256=manifest_sha256(text),
        base=WeightsBase(version=base.version, sha256=base.sha256, name=base.name),
        stored_bytes=len(text) + manifest.shard_bytes,
    )
