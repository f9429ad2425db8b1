"""A manifest comes from a store that others may write: whatever is not as the writer makes it is refused by name."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.exports import export_of, numbers

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.manifest import (
    new_manifest_name,
    parse_manifest,
    shard_name_of,
    stem_of,
)
from rollog.kernel.versions.manifest_text import most_manifest_bytes
from rollog.kernel.versions.shards import shard_layout
from rollog.kernel.versions.tensors import TensorSpec
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

name = "v000003-0123456789abcdef.manifest"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of three tensors in three shards; its shards are called after `name`."""
    directory = tmp_path_factory.mktemp("store")
    tensors = {"a": numbers(4), "b": numbers(2, 3), "c": torch.arange(3, dtype=torch.uint8)}
    notice = WeightsStore(str(directory)).publish_tensors(3, export_of(tensors), most_bytes=24)
    written = (directory / notice.name).read_bytes()
    return written.replace(stem_of(notice.name).encode(), stem_of(name).encode())


def edited(text: bytes, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    """The text with content and storage changed."""
    first, second, third, _ = text.split(b"\n")
    content, storage = json.loads(second), json.loads(third)
    edit(content, storage)
    lines = [json.dumps(each, sort_keys=True, separators=(",", ":")).encode() for each in (content, storage)]
    return b"\n".join((first, *lines, b""))


def test_what_is_written_is_read_and_written_the_same(text: bytes) -> None:
    manifest = parse_manifest(text, name)
    assert manifest.encoded() == text
    assert manifest.digest == hashlib.sha256(b"\n".join(text.split(b"\n")[:2])).hexdigest()
    assert [shard.name for shard in manifest.shards] == [
        f"v000003-0123456789abcdef-{number:02}.safetensors" for number in range(3)
    ]
    assert [[tensor.spec.name for tensor in shard.tensors] for shard in manifest.shards] == [
        ["a"],
        ["b"],
        ["c"],
    ]


def shard_of(key: int, value: object) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    return lambda _, storage: storage["shards"][0].__setitem__(key, value)


def tensor_of(key: int, value: object) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    return lambda content, _: content["tensors"][0].__setitem__(key, value)


def place_of(key: int, value: object) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    return lambda _, storage: storage["tensors"][0].__setitem__(key, value)


forged: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "a shard elsewhere": (
        shard_of(0, "../../etc/passwd"),
        r"names the shard '../../etc/passwd', where v000003-",
    ),
    "a shard with a slash": (shard_of(0, "x/v000003-0123456789abcdef-00.safetensors"), "is the only name"),
    "a shard of another attempt": (
        shard_of(0, "v000003-fedcba9876543210-00.safetensors"),
        "is the only name",
    ),
    "a shard that is no text": (shard_of(0, 7), "is the only name"),
    "a longer shard": (shard_of(1, 1 << 40), "its tensors make"),
    "a shard of negative length": (shard_of(1, -1), "a number from 0"),
    "a shard of broken length": (shard_of(1, 12.5), "a number from 0"),
    "a shard whose length is no number": (shard_of(1, True), "a number from 0"),
    "no sha256 of a shard": (shard_of(2, "ABC"), "64 hexadecimal digits"),
    "a shard too many": (
        lambda _, storage: storage["shards"].append(["v", 1, "0" * 64]),
        "names the shard 'v', where v000003-0123456789abcdef-03.safetensors",
    ),
    "shards without end": (
        lambda _, storage: storage.update(shards=[["v", 1, "0" * 64]] * 10_001),
        "10001 shards, at most 10000",
    ),
    "a position beyond the shard": (place_of(3, 1 << 50), "where only"),
    "a position in another tensor": (place_of(2, 4), "where only"),
    "a negative position": (place_of(2, -8), "a number from 0"),
    "a position of the size of a bomb": (place_of(3, 1 << 70), "a number from 0"),
    "a shard that is not there": (place_of(1, 9), "a number from 0"),
    "a tensor as in the base": (
        lambda _, storage: storage["tensors"].__setitem__(0, ["same"]),
        "where only `dense` can be",
    ),
    "a tensor as what changed": (
        place_of(0, "changed"),
        "is 'changed', where only `dense` can be",
    ),
    "a base": (lambda _, storage: storage.update(base=[2, "0" * 64]), "what changed since another version"),
    "half an adapter": (
        lambda content, _: content.update(adapter={"rank": 4}),
        "rank, rule, scaling, targets",
    ),
    "an unknown type": (tensor_of(1, "F4"), "type 'F4', which is not known"),
    "a type that is no text": (tensor_of(1, ["F32"]), "which is not known"),
    "a name that is no text": (tensor_of(0, 1), "a tensor is called 1"),
    "an empty name": (tensor_of(0, ""), "a tensor is called ''"),
    "the name of what is no tensor": (tensor_of(0, "__metadata__"), "called __metadata__"),
    "half a character": (tensor_of(0, "\ud800"), "a tensor is called"),
    "a long name": (tensor_of(0, "a" * 1001), "1 to 1000 characters"),
    "a negative dimension": (tensor_of(2, [-4]), "a number from 0"),
    "a dimension of the size of a bomb": (tensor_of(2, [1 << 62]), "a number from 0"),
    "dimensions that make a bomb": (tensor_of(2, [1 << 50, 1 << 50]), "has 1 leaves"),
    "dimensions without end": (tensor_of(2, [1] * 17), "17 dimensions, at most 16"),
    "another size": (tensor_of(2, [5]), "where only|its tensors make"),
    "a leaf too many": (lambda content, _: content["tensors"][0][3].append("0" * 64), "has 2 leaves"),
    "a leaf too few": (tensor_of(3, []), "has 0 leaves"),
    "no leaf": (tensor_of(3, ["x"]), "64 hexadecimal digits"),
    "a tensor twice": (lambda content, _: content["tensors"][1].__setitem__(0, "a"), "a tensor twice"),
    "tensors in another order": (
        lambda content, _: content["tensors"].reverse(),
        "as the content digest wants it",
    ),
    "a tensor without a place": (lambda _, storage: storage["tensors"].pop(), "a list of 3 is needed"),
    "a place too many": (lambda _, storage: storage["tensors"].append(["dense", 0, 0, 0]), "a list of 3"),
    "a further key": (lambda content, _: content.update(more=1), "is expected to have adapter, tensors"),
    "a further key of storage": (
        lambda _, storage: storage.update(more=1),
        "expected to have base, shards, tensors",
    ),
    "a row that is none": (lambda content, _: content.update(tensors=[5]), "a list of 4"),
}


@pytest.mark.parametrize("what", forged)
def test_a_forged_manifest_is_refused_and_what_is_wrong_named(text: bytes, what: str) -> None:
    edit, named = forged[what]
    with pytest.raises(WeightsError, match=rf"the manifest {name} cannot be used: .*({named})"):
        parse_manifest(edited(text, edit), name)


@pytest.mark.parametrize(
    ("damaged", "named"),
    [
        (b"", "two lines of JSON"),
        (b"rollog-weights-2\n{}\n{}\n", "two lines of JSON"),
        (b"rollog-weights-1\n{}\n{}", "two lines of JSON"),
        (b"rollog-weights-1\n{}\n{}\nmore", "two lines of JSON"),
        (b"rollog-weights-1\n{\n{}\n", "no JSON"),
        (b"rollog-weights-1\n[]\n{}\n", "expected to have adapter, tensors"),
        (b"rollog-weights-1\n" + b"[" * 100_000 + b"\n{}\n", "no JSON"),
        (b"rollog-weights-1\n" + b"9" * 10_000 + b"\n{}\n", "no JSON"),
        (b"rollog-weights-1\n\xff\n{}\n", "no JSON"),
    ],
)
def test_what_is_no_manifest_is_refused(damaged: bytes, named: str) -> None:
    with pytest.raises(WeightsError, match=named):
        parse_manifest(damaged, name)


def test_a_manifest_that_is_too_long_is_not_looked_into() -> None:
    with pytest.raises(WeightsError, match=f"at most {most_manifest_bytes} are read"):
        parse_manifest(bytes(most_manifest_bytes + 1), name)


def test_spaces_change_the_digest_and_are_refused(text: bytes) -> None:
    with pytest.raises(WeightsError, match="as the content digest wants it"):
        parse_manifest(text.replace(b'"adapter":null', b'"adapter": null'), name)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_an_altered_byte_is_refused_or_leads_to_no_other_file(text: bytes, data: st.DataObject) -> None:
    altered = bytearray(text)
    altered[data.draw(st.integers(0, len(text) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        manifest = parse_manifest(bytes(altered), name)
    except WeightsError:
        return
    assert manifest.encoded() != text
    assert [shard.name for shard in manifest.shards] == [
        shard_name_of(name, number) for number in range(len(manifest.shards))
    ]


def test_names_are_new_each_time_and_only_for_versions() -> None:
    names = {new_manifest_name(7) for _ in range(100)}
    assert len(names) == 100
    assert all(each.startswith("v000007-") for each in names)
    for version in (-1, 10**9):
        with pytest.raises(WeightsError, match="no policy version"):
            new_manifest_name(version)


def test_a_shard_is_as_large_as_it_may_be_but_for_larger_tensors() -> None:
    table = [TensorSpec(str(number), "U8", (size,)) for number, size in enumerate([4, 4, 3, 20, 0, 5, 10])]
    layout = shard_layout(table, 10)
    assert [[spec.num_bytes for spec in shard] for shard in layout] == [[4, 4], [3], [20], [0, 5], [10]]
    assert shard_layout([], 10) == [[]]


def test_a_version_without_tensors_is_one_empty_shard(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path))
    notice = store.publish_tensors(0, export_of({}))
    assert store.fetch(notice, tmp_path).name == notice.name
    assert len(store.names()) == 2
