"""The host copy: a version apart from the engine, compared with the one before."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from support.exports import export_of, numbers

from benchmarks.harness.exports import file_of
from rollog.kernel.errors import EngineError
from rollog.kernel.versions.identity import digest_of_export, leaf_bytes
from rollog.kernel.versions.tensors import TensorMemory, TensorSpec
from trainer import host_copy
from trainer.host_copy import HostCopy

if TYPE_CHECKING:
    from rollog.kernel.versions.tensors import Export, TensorSink


def tensors() -> dict[str, torch.Tensor]:
    return {
        "large": numbers(leaf_bytes // 4 + 1000, 2),
        "small": numbers(3, 5, seed=1).bfloat16(),
        "scalar": torch.tensor(-0.0),
        "empty": torch.zeros(0, 4),
        "counts": torch.arange(7),
    }


def test_the_copy_exports_what_the_engine_did() -> None:
    given = tensors()
    copy = HostCopy()
    copy.fill(3, export_of(given))
    assert copy.version == 3
    assert file_of(copy.export) == file_of(export_of(given))
    assert copy.num_bytes == sum(tensor.nbytes for tensor in given.values())


def test_nothing_of_the_engine_is_needed_afterwards() -> None:
    given = tensors()
    copy = HostCopy()
    copy.fill(1, export_of(given))
    before = digest_of_export(export_of(given))
    for tensor in given.values():
        tensor.zero_()
    assert digest_of_export(copy.export) == before


@pytest.mark.parametrize("is_kept", [True, False])
def test_old_and_new_bytes_of_each_tensor_are_shown(is_kept: bool) -> None:
    copy, shown = (
        HostCopy(most_kept_bytes=18_004_000 - (not is_kept)),
        dict[tuple[str, int], tuple[bytes, bytes]](),
    )

    def compare(spec: TensorSpec, start: int, old: memoryview, new: memoryview) -> None:
        shown[spec.name, start] = bytes(old), bytes(new)

    # "b" is longer than four segments of 4 MiB.
    versions = [{"a": numbers(1000, seed=seed), "b": numbers(4_500_000, seed=seed)} for seed in range(4)]
    copy.fill(0, export_of(versions[0]), compare=compare)
    assert shown == {}, "there was nothing before"
    for number, (before, now) in enumerate(pairwise(versions), 1):
        copy.fill(number, export_of(now), compare=compare)
        assert copy.has_before == is_kept
        if is_kept:
            assert shown == {}, "the engine does not wait for it"
            copy.show_before(compare)
        assert sorted(shown) == [("a", 0), *(("b", piece << 22) for piece in range(5))]
        for name, tensor in before.items():
            pieces = [shown[key] for key in sorted(shown) if key[0] == name]
            assert b"".join(old for old, _ in pieces) == tensor.numpy().tobytes()
            assert b"".join(new for _, new in pieces) == now[name].numpy().tobytes()
        assert file_of(copy.export) == file_of(export_of(now))
        shown.clear()


def test_who_reads_gives_way_before_each_piece_that_is_compared_and_each_tensor_that_is_handed_over() -> None:
    given: list[None] = []
    copy = HostCopy(give_way=lambda: given.append(None))
    versions = [{"a": numbers(1000, seed=seed), "b": numbers(4_500_000, seed=seed)} for seed in range(2)]
    for number, tensors_of_one in enumerate(versions):
        copy.fill(number, export_of(tensors_of_one), compare=lambda *_: None)
    assert given == [], "nothing goes before what training waits for"
    copy.show_before(lambda *_: None)
    assert len(given) == 1 + 5
    digest_of_export(copy.export)
    assert len(given) == 6 + 2


def written_into_memory_of(tensors: dict[str, torch.Tensor], places: list[int]) -> Export:
    """Hands these tensors over as a device does, and notes where it was let to write them."""

    def export(sink: TensorSink) -> None:
        assert isinstance(sink, TensorMemory)
        table = [TensorSpec(name, "F32", tuple(tensor.shape)) for name, tensor in tensors.items()]
        sink.begin(table)
        for spec in table:
            memory = sink.memory_for(spec)
            place = torch.frombuffer(memory, dtype=torch.float32)
            place.copy_(tensors[spec.name].view(-1))
            places.append(place.data_ptr())
            sink.add(spec, memory)

    return export


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_device_writes_into_the_copy_and_old_bytes_are_still_shown(
    monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    monkeypatch.setattr(host_copy, "_most_on_the_way", 1 << 20)
    copy = HostCopy(most_kept_bytes=1 << 30 if is_kept else 0)
    sizes = {"a": 1000, "b": 4_500_000, "c": 10}
    versions = [{name: numbers(size, seed=seed) for name, size in sizes.items()} for seed in range(3)]
    shown = dict[tuple[str, int], tuple[bytes, bytes]]()

    def compare(spec: TensorSpec, start: int, old: memoryview, new: memoryview) -> None:
        shown[spec.name, start] = bytes(old), bytes(new)

    for number, given in enumerate(versions):
        places = list[int]()
        copy.fill(number, written_into_memory_of(given, places), compare=compare)
        assert file_of(copy.export) == file_of(export_of(given))
        held = [torch.frombuffer(copy.tensor(name), dtype=torch.uint8).data_ptr() for name in given]
        has_own_places = is_kept or number == 0
        assert (places == held) == has_own_places
        if not has_own_places:
            assert places[0] == places[2], "small ones that are compared take turns in one place"
            assert places[1] not in places[::2], "a large one takes memory for itself alone"
        if copy.has_before:
            copy.show_before(compare)
    for name in sizes:
        pieces = [shown[key] for key in sorted(shown) if key[0] == name]
        assert b"".join(old for old, _ in pieces) == versions[1][name].numpy().tobytes()
        assert b"".join(new for _, new in pieces) == versions[2][name].numpy().tobytes()


def test_a_nan_that_a_device_wrote_into_the_copy_is_refused() -> None:
    copy, given = HostCopy(), {"a": torch.tensor([1.0, torch.nan])}
    with pytest.raises(EngineError, match="a has a NaN at element 1:"):
        copy.fill(1, written_into_memory_of(given, []))
    assert copy.version is None


def test_what_fails_while_it_is_shown_what_changed_is_raised() -> None:
    copy = HostCopy()
    for version in range(2):
        copy.fill(version, export_of({"a": numbers(10)}), compare=lambda *_: None)

    def failing(*_: object) -> None:
        raise MemoryError("no room for what changed")

    with pytest.raises(MemoryError, match="no room for what changed"):
        copy.show_before(failing)


def test_what_was_not_held_in_this_form_is_not_compared() -> None:
    copy, shown = HostCopy(), list[str]()
    copy.fill(1, export_of({"a": numbers(10), "b": numbers(10), "gone": numbers(10)}))
    now = {"a": numbers(10), "b": numbers(5, 2), "new": numbers(10)}
    copy.fill(2, export_of(now), compare=lambda spec, _start, _old, _new: shown.append(spec.name))
    assert shown == ["a"]
    assert file_of(copy.export) == file_of(export_of(now))
    assert copy.num_bytes == 120


@pytest.mark.parametrize("place", [0, leaf_bytes // 4 + 7])
def test_a_nan_is_refused_with_its_place_and_leaves_no_usable_copy(place: int) -> None:
    copy = HostCopy()
    copy.fill(1, export_of(tensors()))
    given = tensors()
    given["large"].view(-1)[place] = torch.nan
    with pytest.raises(EngineError, match=f"large has a NaN at element {place}:"):
        copy.fill(2, export_of(given))
    assert copy.version is None
    with pytest.raises(ValueError, match="no whole version"):
        copy.export(_Forgetting())


def test_an_infinity_is_no_nan() -> None:
    given = {"a": torch.tensor([torch.inf, -torch.inf, -0.0])}
    copy = HostCopy()
    copy.fill(1, export_of(given))
    assert file_of(copy.export) == file_of(export_of(given))


def test_a_nan_is_copied_bit_for_bit_where_it_is_allowed() -> None:
    given = {"a": torch.tensor([0x7FC1, 0x3F80], dtype=torch.int16).view(torch.bfloat16)}
    copy = HostCopy()
    copy.fill(1, export_of(given), allows_nan=True)
    assert file_of(copy.export) == file_of(export_of(given))


def test_an_engine_that_fails_half_way_leaves_no_usable_copy_and_no_base() -> None:
    given = {"a": numbers(10), "b": numbers(10)}
    copy, shown = HostCopy(), list[str]()

    def failing(sink: TensorSink) -> None:
        table = [TensorSpec("a", "F32", (10,)), TensorSpec("b", "F32", (10,))]
        sink.begin(table)
        sink.add(table[0], np.zeros(40, np.uint8).data)
        raise EngineError("the device is gone")

    copy.fill(1, export_of(given))
    with pytest.raises(EngineError, match="the device is gone"):
        copy.fill(2, failing)
    assert copy.version is None
    copy.fill(3, export_of(given), compare=lambda spec, _start, _old, _new: shown.append(spec.name))
    assert shown == [], "what is half of version 1 and half of version 2 is the base of nothing"
    assert not copy.has_before
    assert file_of(copy.export) == file_of(export_of(given))


def test_tensors_that_do_not_come_or_come_with_other_lengths_are_refused() -> None:
    table = [TensorSpec("a", "F32", (10,))]
    with pytest.raises(ValueError, match=r"did not come: \['a'\]"):
        HostCopy().fill(1, lambda sink: sink.begin(table))

    def short(sink: TensorSink) -> None:
        sink.begin(table)
        sink.add(table[0], memoryview(bytes(36)))

    with pytest.raises(ValueError, match="came with 36 bytes, 40 were announced"):
        HostCopy().fill(1, short)


class _Forgetting:
    def begin(self, table: object) -> None:
        del table

    def add(self, spec: object, data: object) -> None:
        del spec, data


filling = """
import sys
import numpy as np
from pathlib import Path
from rollog.kernel.versions.tensors import TensorSpec
from trainer.host_copy import HostCopy

mib = 1 << 20


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def export(sink):
    table = [TensorSpec(f"layer-{number:03}", "F32", (8 * mib // 4,)) for number in range(16)]
    sink.begin(table)
    for number, spec in enumerate(table):
        sink.add(spec, np.full(8 * mib // 4, number, dtype=np.float32).view(np.uint8).data)


copy, before = HostCopy(most_kept_bytes=int(sys.argv[1])), peak()
for version in range(4):
    copy.fill(version, export, compare=lambda spec, start, old, new: None)
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize(("most_kept_mib", "held_mib"), [(127, 128), (128, 256)])
def test_versions_take_the_memory_of_one_or_where_they_are_small_of_two(
    most_kept_mib: int, held_mib: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", filling, str(most_kept_mib << 20)], check=True, capture_output=True, text=True
    )
    assert held_mib <= int(ended.stdout) <= held_mib + 40
