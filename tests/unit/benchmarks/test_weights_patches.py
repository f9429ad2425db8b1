"""The benchmark of patches: real updates, the floors, and a reader whose mistakes are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from benchmarks.harness.random_model import ModelShape
from benchmarks.weights.patches import Store, measure_patches
from benchmarks.weights.stages import Seconds, digest, encoded, patched, time_coding
from benchmarks.weights.updates import Variant, exported_versions, tensors_of, write_model
from rollog.kernel.versions.chains import VersionPair, route

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine

small = ModelShape(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_key_value_heads=1
)


def test_all_versions_come_back_and_every_figure_has_its_floor() -> None:
    lines: list[str] = []
    figures, details = measure_patches(
        shape=small,
        rates=(1e-6, 1e-3),
        optimizer_steps=(2,),
        num_steps=3,
        seed=0,
        on_progress=lines.append,
    )
    by_rate = [
        {figure.name.split("steps_2.")[1]: figure for figure in figures if f".rate_{rate:g}." in figure.name}
        for rate in (1e-6, 1e-3)
    ]
    for values in by_rate:
        assert (values["unequal"].value, values["unequal"].unit.split()[1]) == (0, "7")
        assert 0 < values["changed"].value < values["plain_share"].value
        assert 0 < values["share"].value <= values["largest_share"].value
        assert {
            f"seconds.{stage}" for stage in ("find", "pack", "compress", "encode", "sha256")
        } < values.keys()
        assert all(figure.ideal is not None for name, figure in values.items() if name.startswith("seconds."))
    assert {"seconds.decode", "seconds.apply"} < by_rate[0].keys()
    rows = details["steps"]
    assert isinstance(rows, dict)
    num_full = [sum(row["is_full"] for row in each) for each in rows.values()]
    # Of large updates two patches have more than half of the bytes of a full form.
    assert num_full[0] == 0 < num_full[1]
    assert [values["share"].target for values in by_rate] == [0.03, None]
    assert len(lines) == 6


def test_sixteen_versions_change_less_together_than_one_after_the_other() -> None:
    figures, _ = measure_patches(
        shape=small, rates=(1e-7,), optimizer_steps=(1,), num_steps=17, seed=0, on_progress=lambda _: None
    )
    values = {figure.name.rpartition(".")[2]: figure.value for figure in figures}
    assert 0 < values["cumulative_changed"] < 1
    assert 0 < values["cumulative_share"] < 1


def test_the_updates_are_those_of_the_engine_and_change_some_weights(tmp_path: Path) -> None:
    write_model(tmp_path, small, seed=0)
    variant = Variant(learning_rate=1e-6, optimizer_steps=1)
    first, second = exported_versions(tmp_path, small, variant, num_steps=1, seed=0)
    base, new, seconds = tensors_of(first), tensors_of(second), Seconds()
    for name, tensor in load(first).items():
        assert tensor.dtype is torch.bfloat16
        assert tensor.view(torch.int16).numpy().tobytes() == base[name].tobytes()
    num_elements = sum(tensor.size for tensor in base.values())
    num_changes, num_bytes = time_coding(base, new, seconds)
    assert num_changes == sum(int((base[name] != new[name]).sum()) for name in base)
    assert 0 < num_changes < num_elements / 2
    assert 3 * num_changes <= num_bytes < 3 * num_changes + num_elements / 255


def test_a_tensor_that_is_dense_and_blocks_after_it_are_patched_in_order() -> None:
    draw = np.random.default_rng(0)
    versions = [{"w": draw.integers(0, 2**16, 500, dtype=np.uint16)}]
    versions.append({"w": draw.integers(0, 2**16, 500, dtype=np.uint16)})
    versions.append({"w": versions[1]["w"].copy()})
    versions[2]["w"][::50] += 1
    patches = [encoded(versions[0], versions[1], Seconds()), encoded(versions[1], versions[2], Seconds())]
    assert [patch["w"].form for patch in patches] == ["dense", "changed"]
    reader = {"w": versions[0]["w"].copy()}
    patched(reader, patches, [versions[1], {}], Seconds())
    assert digest(reader, Seconds()) == digest(versions[2], Seconds())


def test_a_reader_that_rebuilds_other_weights_is_found_by_their_digest(tmp_path: Path) -> None:
    store = Store(directory=tmp_path)
    exported = save({"w": torch.ones(4, dtype=torch.bfloat16)})
    pair = VersionPair(0, digest(tensors_of(exported), Seconds()))
    store.add_full(pair, exported)
    damaged = bytearray((tmp_path / "full-0").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "full-0").write_bytes(damaged)
    rebuilt = store.read(route(store.forms, pair), {}, Seconds())
    assert digest(rebuilt, Seconds()) != pair.digest
