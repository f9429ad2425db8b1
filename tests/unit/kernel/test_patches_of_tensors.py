"""A patch gives back every bit of a tensor, and another reader of its layout does the same."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.patched_tensors import (
    Decoded,
    TwoVersions,
    a_block,
    coded_changes,
    decode,
    patched,
    random_patterns,
    read_by_another,
    sparsely_changed,
    two_versions,
)

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.bit_patterns import BitPatterns, bit_patterns
from rollog.kernel.versions.blocks import Layout, segment_elements
from rollog.kernel.versions.gaps import packed_gaps, unpacked_positions
from rollog.kernel.versions.patches import GivenUpError, TensorPatch, combine, encode

most_scratch_bytes = 64 << 20


def decoded(base: BitPatterns, *blocks: bytes) -> Decoded:
    parts = list(decode(blocks, base))
    return Decoded(
        np.concatenate([part.positions for part in parts]), np.concatenate([part.values for part in parts])
    )


def changed_block(pair: TwoVersions) -> bytes:
    patch = encode(pair.base, pair.new)
    assert patch.form == "changed"
    return patch.block


@settings(max_examples=60)
@given(two_versions())
def test_every_bit_comes_back_and_another_reader_finds_the_same(pair: TwoVersions) -> None:
    patch = encode(pair.base, pair.new)
    if np.array_equal(pair.base, pair.new):
        assert (patch.form, patch.block) == ("same", b"")
        return
    if patch.form == "dense":
        assert patch.block == b""
        assert pair.base.nbytes < 2000  # of a large tensor so few changes always pay
        return
    assert patch.form == "changed"
    assert 5 * len(patch.block) <= 3 * pair.base.nbytes
    assert patched(pair.base, patch.block).tobytes() == pair.new.tobytes()
    assert read_by_another(patch.block, pair.base.tolist()) == pair.new.tolist()


@given(st.lists(st.integers(0, segment_elements - 1), min_size=1, max_size=60, unique=True).map(sorted))
def test_positions_are_at_most_as_many_bytes_as_elements_up_to_them(positions: list[int]) -> None:
    packed = packed_gaps(np.array(positions, dtype=np.intp))
    assert packed.size <= positions[-1] + 1
    assert packed[-1] != 255
    assert unpacked_positions(packed).tolist() == positions


def test_gaps_are_those_of_the_example() -> None:
    assert packed_gaps(np.array([0, 3, 4, 600])).tolist() == [0, 2, 0, 255, 255, 85]
    assert packed_gaps(np.array([254, 509, 765])).tolist() == [254, 254, 255, 0]


def test_every_value_of_small_elements_becomes_every_other() -> None:
    base = np.repeat(np.arange(256, dtype=np.uint8), 256 * 16)
    new = base.copy()
    new[::16] = np.tile(np.arange(256, dtype=np.uint8), 256)
    block = changed_block(TwoVersions(base, new))
    assert patched(base, block).tobytes() == new.tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_signs_of_zero_and_payloads_of_nan_are_kept(dtype: torch.dtype) -> None:
    size = torch.empty(0, dtype=dtype).element_size()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    base = torch.zeros(4000, dtype=dtype)
    new = base.clone()
    new[7] = -0.0
    new[9], new[10] = float("inf"), float("-inf")
    quiet = torch.full((1,), float("nan"), dtype=dtype).view(integers)
    new.view(integers)[11:13] = torch.cat([quiet, quiet + 1])
    assert torch.equal(base[7:8], new[7:8])  # as numbers they are equal
    pair = TwoVersions(*(bit_patterns(each.view(torch.uint8).numpy().data, size) for each in (base, new)))
    block = changed_block(pair)
    assert decoded(pair.base, block).positions.tolist() == [7, 9, 10, 11, 12]
    assert patched(pair.base, block).tobytes() == pair.new.tobytes()
    # The other way round: from NaN to zero.
    back = changed_block(TwoVersions(pair.new, pair.base))
    assert patched(pair.new, back).tobytes() == pair.base.tobytes()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
def test_tensors_of_single_bytes_have_patches_too(dtype: torch.dtype) -> None:
    base = torch.zeros(3000, dtype=dtype)
    new = base.clone()
    new[[5, 2999]] = 1
    pair = TwoVersions(*(bit_patterns(each.view(torch.uint8).numpy().data, 1) for each in (base, new)))
    changes = decoded(pair.base, changed_block(pair))
    assert (changes.positions.tolist(), changes.values.tolist()) == ([5, 2999], [1, 1])


def test_an_empty_tensor_is_the_same_and_no_block_fits_it() -> None:
    empty = bit_patterns(b"", 2)
    assert encode(empty, empty).form == "same"
    with pytest.raises(WeightsError, match="of 100 elements of 2 bytes, the tensor has 0"):
        list(decode([a_block(b"\x03", b"\x02\x00")], empty))


def test_a_single_element_is_dense_because_a_block_is_larger() -> None:
    assert encode(np.array([1], dtype="<u2"), np.array([2], dtype="<u2")).form == "dense"


def test_a_tensor_that_changed_everywhere_is_dense() -> None:
    pair = TwoVersions(*(random_patterns(100_000, 2, seed) for seed in (1, 2)))
    assert encode(pair.base, pair.new).form == "dense"


def test_a_block_is_taken_up_to_three_fifths_of_the_tensor() -> None:
    forms = []
    for share in np.linspace(0, 1, 41):
        base = random_patterns(20_000, 2, 0)
        new = base.copy()
        new[: int(share * base.size)] = random_patterns(int(share * base.size), 2, 1)
        patch = encode(base, new)
        forms.append(patch.form)
        assert len(patch.block) <= 0.6 * base.nbytes
    assert forms[0] == "same"
    assert set(forms[1:20]) == {"changed"}
    assert set(forms[30:]) == {"dense"}


@settings(max_examples=20)
@given(st.integers(2, 16), st.sampled_from([1, 2, 4, 8]), st.sampled_from([2000, segment_elements + 2000]))
def test_blocks_of_consecutive_versions_decode_at_once(
    num_versions: int, item_size: int, num_elements: int
) -> None:
    versions = [random_patterns(num_elements, item_size, 0)]
    for seed in range(num_versions):
        step = sparsely_changed(num_elements, item_size, seed=seed, share=20 / num_elements)
        versions.append(versions[-1] + (step.new - step.base))
    blocks = [changed_block(TwoVersions(*each)) for each in pairwise(versions) if (each[0] != each[1]).any()]
    changes = decoded(versions[0], *blocks)
    assert (np.diff(changes.positions) > 0).all()
    assert patched(versions[0], *blocks).tobytes() == versions[-1].tobytes()


def test_combining_ends_where_it_is_over_meanwhile() -> None:
    num_elements = 10 * segment_elements
    pair = sparsely_changed(num_elements, 2)
    answers = iter((False, False, *(True,) * 8))
    with ThreadPoolExecutor(1) as pool, pytest.raises(GivenUpError):
        combine(
            [changed_block(pair)] * 2,
            Layout(num_elements, 2),
            name="weight",
            pool=pool,
            is_over=answers.__next__,
        )


def combined(blocks: list[bytes], layout: Layout) -> TensorPatch:
    with ThreadPoolExecutor(2) as pool:
        return combine(blocks, layout, name="weight", pool=pool)


@settings(max_examples=20)
@given(
    st.integers(2, 16), st.sampled_from([1, 2, 4, 8]), st.sampled_from([300, 2000, segment_elements + 2000])
)
def test_blocks_of_consecutive_versions_are_combined_into_the_block_of_the_last_beside_the_first(
    num_versions: int, item_size: int, num_elements: int
) -> None:
    versions = [random_patterns(num_elements, item_size, 0)]
    for seed in range(num_versions):
        step = sparsely_changed(num_elements, item_size, seed=seed, share=20 / num_elements)
        # Every third step goes back to where the one before it began.
        versions.append(versions[-2] if seed % 3 == 2 else versions[-1] + (step.new - step.base))
    blocks = [changed_block(TwoVersions(*each)) for each in pairwise(versions) if (each[0] != each[1]).any()]
    layout = Layout(num_elements, item_size)
    assert combined(blocks, layout) == encode(versions[0], versions[-1])


def test_what_comes_back_to_where_it_began_is_the_same() -> None:
    pair = sparsely_changed(5000, 2)
    there, back = changed_block(pair), changed_block(TwoVersions(pair.new, pair.base))
    assert combined([there, back], Layout(5000, 2)) == TensorPatch("same")


def test_combined_changes_of_most_elements_do_not_pay() -> None:
    draw = np.random.default_rng(0)
    versions = [random_patterns(5000, 2, 0)]
    for number in range(4):
        versions.append(versions[-1].copy())
        versions[-1][number::4] += draw.integers(1, 2**16, 1250).astype("<u2")
    blocks = [changed_block(TwoVersions(*each)) for each in pairwise(versions)]
    assert combined(blocks, Layout(5000, 2)) == TensorPatch("dense")


def test_a_block_of_another_tensor_is_not_combined() -> None:
    block = changed_block(sparsely_changed(3000, 2))
    with pytest.raises(WeightsError, match="'weight' is refused: it is of 3000 elements of 2 bytes"):
        combined([block, block], Layout(3001, 2))


def test_a_block_is_read_from_any_buffer() -> None:
    pair = sparsely_changed(3000, 2)
    block = changed_block(pair)
    for buffer in (bytearray(block), memoryview(block), np.frombuffer(block, dtype=np.int8).data):
        (changes,) = decode([buffer], pair.base)
        assert changes.values.tolist() == pair.new[changes.positions].tolist()


@pytest.mark.parametrize("item_size", [1, 2, 8])
def test_memory_beside_the_results_is_bounded(item_size: int) -> None:
    pair = sparsely_changed(3 * segment_elements, item_size, share=0.9 if item_size == 8 else 0.3)
    tracemalloc.start()
    try:
        block = changed_block(pair)
        assert tracemalloc.get_traced_memory()[1] < most_scratch_bytes + 2 * len(block)
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0]
        coded = coded_changes([block, block], pair.base)
        for changes in coded.decoded(coded.segments):
            del changes  # a result
        assert tracemalloc.get_traced_memory()[1] - held < most_scratch_bytes
    finally:
        tracemalloc.stop()


def test_the_layout_is_written_down_in_bytes() -> None:
    """A program in another language can read this: 12 elements of two bytes, of which 3 changed."""
    base = np.array([0, 1, 0xFFFF, 0x3F80, 5, 6, 7, 8, 9, 10, 11, 0x8000], dtype="<u2")
    block = bytes.fromhex(
        "52575031 02000000 0c00000000000000 0300000000000000"  # header: 2 bytes, 12 elements, 3 changes
        "03000000 03000000 0c000000 0f000000"  # segment: 3 changes, 3 bytes of gaps, lengths of both frames
        "28b52ffd 20 03 190000 020007"  # gaps 2, 0, 7: positions 2, 3, 11
        "28b52ffd 20 06 310000 020100 000003"  # zigzag 2, 1, 0x0300: + 1, - 1, + 0x0180
    )
    assert zstandard.decompress(block[40:52]) == bytes([2, 0, 7])
    changes = decoded(base, block)
    assert changes.positions.tolist() == [2, 3, 11]
    assert changes.values.tolist() == [0x0000, 0x3F7F, 0x8180]
    assert read_by_another(block, base.tolist()) == patched(base, block).tolist()


def test_what_is_written_today_reads_as_what_is_written_down() -> None:
    padding = np.zeros(200, dtype="<u2")
    base = np.concatenate([np.array([0, 1, 0xFFFF, 0x3F80, 0x8000], dtype="<u2"), padding])
    new = np.concatenate([np.array([0, 1, 0x0000, 0x3F7F, 0x8180], dtype="<u2"), padding])
    block = changed_block(TwoVersions(base, new))
    assert block[:32].hex(" ", 4) == "52575031 02000000 cd000000 00000000 03000000 00000000 03000000 03000000"
    gaps_length = int.from_bytes(block[32:36], "little")
    assert zstandard.decompress(block[40 : 40 + gaps_length]) == bytes([2, 0, 0])
    assert zstandard.decompress(block[40 + gaps_length :]) == bytes([2, 1, 0, 0, 0, 3])


def test_what_a_caller_mistakes_is_a_value_error() -> None:
    numbers = np.arange(4, dtype="<u2")
    for base, new in (
        (numbers, numbers[:3]),
        (numbers, numbers.astype("<u4")),
        (numbers.reshape(2, 2), numbers.reshape(2, 2)),
        (numbers.astype(">u2"), numbers.astype(">u2")),
        (numbers.astype("<i2"), numbers.astype("<i2")),
    ):
        with pytest.raises(ValueError, match=r"one dimension|differ"):
            encode(base, new)
    with pytest.raises(ValueError, match="elements of 16 bytes"):
        bit_patterns(b"", 16)
    with pytest.raises(ValueError, match="multiple of element size"):
        bit_patterns(b"abc", 2)
