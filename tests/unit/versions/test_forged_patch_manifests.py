"""Manifests of patches that somebody altered are refused, and what is wrong with them is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.patched_versions import publish_versions, versions_of

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.patch_manifest import PatchManifest, parse_stored
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import Callable

    Edit = Callable[[dict[str, Any]], object]

base_name = "v000000-0123456789abcdef.manifest"


def place(key: int, value: object, number: int = 3) -> Edit:
    """Rows are in the order of names: empty, everywhere, half, large, same, steps, zeros."""
    return lambda storage: storage["tensors"][number].__setitem__(key, value)


def base(**changes: object) -> Edit:
    return lambda storage: storage["base"].update(changes)


forged: dict[str, tuple[Edit, str]] = {
    "a base that is not lower": (base(version=1, manifest="v000001-0123456789abcdef.manifest"), "not lower"),
    "a base of another version": (
        base(version=0, manifest="v000003-0123456789abcdef.manifest"),
        "of another",
    ),
    "a base elsewhere": (base(manifest="../" + base_name), "no name of a manifest"),
    "a base that is no text": (base(manifest=4), "no name of a manifest"),
    "a base of negative version": (base(version=-1), "a number from 0"),
    "no digest of the base": (base(sha256="x"), "64 hexadecimal digits"),
    "no sha256 of its manifest": (base(manifest_sha256=None), "64 hexadecimal digits"),
    "a further key of the base": (base(more=1), "its base is"),
    "a list for a base": (lambda storage: storage.update(base=[1, "0" * 64]), "its base is"),
    "a position before the last": (place(2, 0), "where only"),
    "a hole": (place(2, 4000), "where only"),
    "a position beyond the shard": (place(3, 1 << 50), "bytes of changed for a tensor"),
    "a block larger than its tensor": (place(3, 2_600_000), "bytes of changed for a tensor"),
    "an empty block": (
        lambda storage: storage["tensors"][3].__setitem__(3, storage["tensors"][3][2]),
        "0 bytes of",
    ),
    "a position of the size of a bomb": (place(3, 1 << 70), "a number from 0"),
    "a shard that is not there": (place(1, 1), "a number from 0"),
    "a tensor that is dense and short": (place(0, "dense"), "bytes of dense for a tensor"),
    "an unknown form": (place(0, "xor"), "is 'xor', where same, changed or dense"),
    "a form that is no text": (place(0, ["same"]), "where same, changed or dense"),
    "same with a place": (place(0, "same"), "a list of 1"),
    "a piece that is left out": (
        lambda storage: storage["tensors"].__setitem__(3, ["same"]),
        "where only|fill",
    ),
    "a shard elsewhere": (
        lambda storage: storage["shards"][0].__setitem__(0, "/etc/passwd"),
        "the only name",
    ),
    "a shard too many": (
        lambda storage: storage["shards"].append(["v000001-0123456789abcdef-01.patch", 1, "0" * 64]),
        "fill 1 shards",
    ),
    "a shard without bytes": (
        lambda storage: storage["shards"].insert(0, ["v000001-0123456789abcdef-00.patch", 0, "0" * 64]),
        "has no bytes",
    ),
    "a longer shard": (lambda storage: storage["shards"][0].__setitem__(1, 1 << 40), "fill 1 shards"),
    "shards without end": (
        lambda storage: storage.update(shards=[["v", 1, "0" * 64]] * 10_001),
        "at most 10000",
    ),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("store")
    notice = publish_versions(WeightsStore(str(directory)), versions_of(2))[1]
    written = (directory / notice.name).read_bytes()
    return written.replace(notice.name.split(".")[0].encode(), b"v000001-0123456789abcdef")


def test_what_is_written_of_a_patch_is_read_and_written_the_same(text: bytes) -> None:
    manifest = parse_stored(text, "v000001-0123456789abcdef.manifest")
    assert isinstance(manifest, PatchManifest)
    assert manifest.encoded() == text
    forms = {piece.tensor.spec.name: piece.form for piece in manifest.pieces}
    assert forms == {
        "large": "changed",
        "half": "changed",
        "zeros": "changed",
        "same": "same",
        "empty": "same",
        "everywhere": "dense",
        "steps": "dense",
    }


@pytest.mark.parametrize("what", forged)
def test_a_forged_manifest_of_a_patch_is_refused_and_what_is_wrong_named(text: bytes, what: str) -> None:
    edit, named = forged[what]
    first, second, third, _ = text.split(b"\n")
    storage = json.loads(third)
    edit(storage)
    edited = json.dumps(storage, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(WeightsError, match=rf"manifest v000001-\w+.manifest cannot be used: .*({named})"):
        parse_stored(b"\n".join((first, second, edited, b"")), "v000001-0123456789abcdef.manifest")
