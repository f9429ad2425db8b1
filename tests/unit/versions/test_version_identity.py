"""The content digest says which tensors a version has, and nothing of how they are stored."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from support.exports import export_of, numbers

from benchmarks.harness.exports import file_of
from rollog.kernel.errors import EngineError
from rollog.kernel.versions import identity
from rollog.kernel.versions.identity import DigestSink, digest_of_export
from rollog.kernel.versions.tensors import TensorSpec
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    import random
    from pathlib import Path

dtypes = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@st.composite
def models(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Some tensors of any type and shape, scalars and empty ones among them."""
    names = draw(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=6))
    found: dict[str, torch.Tensor] = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = draw(st.sampled_from(dtypes))
        values = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(len(found)))
        found[name] = values.to(dtype)
    return found


def text_of(tensors: dict[str, torch.Tensor]) -> bytes:
    """The text of the content digest, written once more from its definition."""
    kinds = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}
    rows = []
    for name in sorted(tensors, key=str.encode):
        tensor = tensors[name]
        data = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
        leaves = [
            hashlib.sha256(data[begin : begin + (16 << 20)]).hexdigest()
            for begin in range(0, len(data), 16 << 20)
        ]
        rows.append([name, kinds[tensor.dtype], list(tensor.shape), leaves])
    content = json.dumps({"adapter": None, "tensors": rows}, sort_keys=True, separators=(",", ":"))
    return b"rollog-weights-1\n" + content.encode("ascii")


def test_the_digest_is_the_sha256_of_the_text_that_the_definition_gives() -> None:
    tensors = {
        "large": numbers(5, 1 << 20),  # two leaves
        "\u00e9": numbers(2).to(torch.bfloat16),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "Z": torch.arange(5, dtype=torch.uint8),
    }
    assert digest_of_export(export_of(tensors)) == hashlib.sha256(text_of(tensors)).hexdigest()


def test_the_definition_of_one_small_version_never_changes() -> None:
    tensors = {"b": torch.tensor([1.0, -0.0]), "a": torch.tensor([[3]], dtype=torch.uint8)}
    one, two = hashlib.sha256(b"\x03").hexdigest(), hashlib.sha256(struct.pack("<2f", 1.0, -0.0)).hexdigest()
    text = (
        'rollog-weights-1\n{"adapter":null,"tensors":'
        f'[["a","U8",[1,1],["{one}"]],["b","F32",[2],["{two}"]]]}}'
    )
    assert digest_of_export(export_of(tensors)) == hashlib.sha256(text.encode()).hexdigest()
    assert digest_of_export(export_of(tensors)) == (
        "4ff2103738088e48548c84ba5e11d99ec9c7f241c1c8de49a042fa8788bd23bb"
    )


@given(models(), st.integers(1, 200), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_shard_size_threads_and_order_of_gathering_change_nothing(
    tensors: dict[str, torch.Tensor], most_bytes: int, num_threads: int, order: random.Random
) -> None:
    expected = digest_of_export(export_of(tensors))
    shuffled = list(tensors)
    order.shuffle(shuffled)
    with DigestSink(num_threads) as sink:
        for name in shuffled:
            export_of({name: tensors[name]})(sink)
        assert sink.digest() == expected
    store = WeightsStore("memory://identity")
    notice = store.publish_tensors(1, export_of(tensors), most_bytes=most_bytes)
    assert notice.sha256 == expected
    for name in store.file_names(notice):
        store.delete(name)


@given(models())
@settings(max_examples=150, deadline=None)
def test_a_single_file_has_the_bytes_that_the_library_writes(tensors: dict[str, torch.Tensor]) -> None:
    assert file_of(export_of(tensors)) == save(tensors, metadata={"format": "pt"})


def test_a_zero_has_a_sign() -> None:
    zero, minus = torch.zeros(3), -torch.zeros(3)
    assert digest_of_export(export_of({"w": zero})) != digest_of_export(export_of({"w": minus}))


def test_name_type_and_shape_count() -> None:
    tensor = torch.zeros(4, dtype=torch.int32)
    others = [
        {"v": tensor},
        {"w": tensor.to(torch.uint8).repeat(4)},
        {"w": tensor.reshape(2, 2)},
        {"w": tensor, "empty": torch.empty(0)},
        {"w": tensor, "empty": torch.empty(0, 1)},
        {"w": tensor},
    ]
    assert len({digest_of_export(export_of(each)) for each in others}) == len(others)


@pytest.mark.parametrize("dtype", [each for each in dtypes if each.is_floating_point])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_nan_is_refused_and_its_place_named(dtype: torch.dtype, sign: int) -> None:
    tensor = torch.ones(50, dtype=torch.float32)
    tensor[0], tensor[1] = 0.0, -0.0
    if dtype is not torch.float8_e4m3fn:
        tensor[2], tensor[3] = float("inf"), -float("inf")
    assert len(digest_of_export(export_of({"w": tensor.to(dtype)}))) == 64
    tensor[17] = sign * float("nan")
    with pytest.raises(
        EngineError, match=r"weights tensor w has a NaN at element 17: .*optimizer.learning_rate"
    ):
        digest_of_export(export_of({"w": tensor.to(dtype)}))


def test_a_nan_in_a_later_leaf_is_found_by_threads() -> None:
    tensor = torch.zeros((40 << 20) // 4)
    place = (33 << 20) // 4
    tensor[place] = float("nan")
    with pytest.raises(EngineError, match=f"element {place}:"):
        digest_of_export(export_of({"w": tensor}))


def test_a_version_with_a_nan_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    tensors = {"a": numbers(1000), "w": torch.tensor([float("nan")])}
    with pytest.raises(EngineError, match="NaN"):
        WeightsStore(str(tmp_path)).publish_tensors(1, export_of(tensors), most_bytes=100)
    assert list(tmp_path.iterdir()) == []


def test_leaves_are_of_16_mib() -> None:
    assert identity.leaf_bytes == 16 * 1024 * 1024
    assert identity.num_leaves(TensorSpec("w", "F32", (1 << 22,))) == 1
    assert identity.num_leaves(TensorSpec("w", "F32", ((1 << 22) + 1,))) == 2
    assert identity.num_leaves(TensorSpec("w", "F32", (0, 5))) == 0
