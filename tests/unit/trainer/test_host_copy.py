"""The host copy: a version apart from the engine, compared with the one before while it is overwritten."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from support.exports import export_of, numbers

from benchmarks.harness.exports import file_of
from rollog.kernel.errors import EngineError
from rollog.kernel.versions.identity import digest_of_export, leaf_bytes
from rollog.kernel.versions.tensors import TensorSpec
from trainer.host_copy import HostCopy

if TYPE_CHECKING:
    from rollog.kernel.versions.tensors import TensorSink


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


def test_old_and_new_bytes_of_each_tensor_are_shown_before_they_are_overwritten() -> None:
    copy, shown = HostCopy(), dict[tuple[str, int], tuple[bytes, bytes]]()

    def compare(spec: TensorSpec, start: int, old: memoryview, new: memoryview) -> None:
        shown[spec.name, start] = bytes(old), bytes(new)

    # "b" is longer than four segments of 4 MiB.
    one = {"a": numbers(1000), "b": numbers(4_500_000)}
    two = {"a": numbers(1000, seed=2), "b": numbers(4_500_000, seed=3)}
    copy.fill(1, export_of(one), compare=compare)
    assert shown == {}, "there was nothing before"
    copy.fill(2, export_of(two), compare=compare)
    assert sorted(shown) == [("a", 0), *(("b", number << 22) for number in range(5))]
    for name, tensor in one.items():
        pieces = [shown[key] for key in sorted(shown) if key[0] == name]
        assert b"".join(old for old, _ in pieces) == tensor.numpy().tobytes()
        assert b"".join(new for _, new in pieces) == two[name].numpy().tobytes()


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


filling_twice = """
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


copy, before = HostCopy(), peak()
for version in (1, 2):
    copy.fill(version, export, compare=lambda spec, start, old, new: None)
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process is read from /proc")
def test_two_versions_take_the_memory_of_one() -> None:
    ended = subprocess.run([sys.executable, "-c", filling_twice], check=True, capture_output=True, text=True)
    assert 128 <= int(ended.stdout) <= 128 + 40
