"""From a notice until its version is served: the whole way at tiny size, and what counts as the pause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load, load_file, save_file

from benchmarks.harness.exports import file_of
from benchmarks.harness.random_model import shapes
from benchmarks.weights.elsewhere import Channel, store_elsewhere
from benchmarks.weights.large_runs import Way, a_job
from benchmarks.weights.reload import Reload, ReloadRun, figures_of, measure_reload
from benchmarks.weights.vllm_reload import Pause, StoredModel, pauses_of
from benchmarks.weights.vllm_reload import figures_of as vllm_figures_of
from producers.engines.simulated import SimulatedEngine
from rollog.kernel.errors import DataError
from rollog.kernel.versions.identity import digest_of_export
from schemas import WeightVersion

if TYPE_CHECKING:
    from pathlib import Path


def a_reload(*, moved_bytes: int = 1000) -> Reload:
    notice = WeightVersion(version=3, sha256="a" * 64, name="v000003", num_bytes=1_000_000)
    return Reload(notice=notice, seconds=1.0, pause_seconds=0.5, copy_seconds=0.4, moved_bytes=moved_bytes)


def test_reloads_are_measured_from_the_log_and_the_engine_in_all_ways(tmp_path: Path) -> None:
    figures = measure_reload(
        sizes={"tiny": shapes["tiny"]},
        home=tmp_path,
        seed=0,
        on_progress=print,
        step_seconds={"tiny": 0.3},
        num_steps=6,
    )
    by_name = {figure.name.removeprefix("weights.reload.tiny."): figure for figure in figures}
    for way in ("patch_1e-6", "patch_3e-6", "full", "full_here"):
        serving, pause = by_name[f"{way}.serving"], by_name[f"{way}.pause"]
        assert serving.value > pause.value > 0
        assert by_name[f"{way}.serving_ratio"].target == 1.3
        assert by_name[f"{way}.beyond_copy"].target == 0.3
        if way.startswith("patch"):
            with_write = by_name[f"{way}.serving_ratio_with_write"]
            assert with_write.value < by_name[f"{way}.serving_ratio"].value
        else:
            assert f"{way}.serving_ratio_with_write" not in by_name
    assert 0 < by_name["patch_1e-6.moved"].value < by_name["patch_3e-6.moved"].value < 0.05
    assert by_name["full.moved"].value == pytest.approx(1.0, abs=0.05)
    assert by_name["full_here.moved"].value == 0.0
    assert list(tmp_path.iterdir()) == [], "nothing of runs and stores is left"


def test_versions_of_a_store_elsewhere_are_loaded_from_a_copy_in_shared_memory_that_does_not_stay(
    tmp_path: Path,
) -> None:
    channel = Channel()
    way = Way(shape=shapes["tiny"], store=store_elsewhere(tmp_path / "store", channel))
    job = a_job("reload", step_seconds=0.3, num_steps=5, seed=0)
    run = ReloadRun(job, tmp_path / "run", way, channel)
    assert run.shared is not None
    try:
        run.create()
        with run.roles():
            run.wait_until_closed(60 * job.speed)
        assert run.reloads()
        assert {run.shared in load.path.parents for load in run.engine.loads} == {True}
        assert not run.shared.exists()
        run.engine.loads[0].path = tmp_path / "run" / "downloads" / "worker-0" / "v000000.manifest"
        with pytest.raises(DataError, match=r"version 0 was loaded from .* and not from shared memory"):
            run.reloads()
    finally:
        run.remove()


def test_the_copy_into_the_engine_is_no_part_of_what_a_pause_takes_beyond_it(tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in figures_of("r", [a_reload(), a_reload()], tmp_path)}
    assert (figures["r.pause"].value, figures["r.pause"].ideal) == (0.5, 0.4)
    assert figures["r.beyond_copy"].value == pytest.approx(0.1)
    assert figures["r.moved"].value == 0.001
    assert figures["r.serving_ratio"].value == pytest.approx(
        figures["r.serving"].value / (figures["r.serving"].ideal or 0), rel=0.2
    )


def a_model(path: Path) -> Path:
    draw = np.random.default_rng(0)
    save_file({"w": draw.random((300, 40), dtype=np.float32), "b": draw.random(7, dtype=np.float32)}, path)
    return path


def test_a_stored_model_is_handed_over_as_it_is_in_its_file_until_it_changes(tmp_path: Path) -> None:
    path = a_model(tmp_path / "model.safetensors")
    model = StoredModel(path)
    exported = load(file_of(model.export))
    assert {name: tensor.tobytes() for name, tensor in exported.items()} == {
        name: tensor.tobytes() for name, tensor in load_file(path).items()
    }
    before = digest_of_export(model.export)
    model.change()
    assert digest_of_export(model.export) != before


class NotingEngine(SimulatedEngine):
    """Takes longer for the first two loads, and notes where versions are."""

    def __init__(self) -> None:
        super().__init__(load_seconds=0.05)
        self.directories: list[Path] = []

    async def load_weights(self, path: Path, version: int) -> None:
        self.directories.append(path.parent)
        if version < 2:
            await asyncio.sleep(2.0)
        await super().load_weights(path, version)


def test_a_pause_of_an_engine_is_as_long_as_its_load_and_the_first_ones_do_not_count(tmp_path: Path) -> None:
    engine = NotingEngine()
    pauses = asyncio.run(pauses_of(engine, a_model(tmp_path / "model.safetensors"), tmp_path, 3))
    assert len(pauses) == 3
    assert all(0.05 <= pause.seconds < 2.0 for pause in pauses)
    assert list((tmp_path / "weights").iterdir()) == []
    assert len(engine.directories) == 5
    assert {directory.parent.name for directory in engine.directories} == {"copies"}
    assert not engine.directories[0].parent.parent.exists(), "nothing of the copy is left"


def test_versions_that_are_not_in_shared_memory_are_no_measurement(tmp_path: Path) -> None:
    model = a_model(tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"version 0 is in .*downloads/worker, and not in shared memory"):
        asyncio.run(pauses_of(SimulatedEngine(), model, tmp_path, 1, free_bytes=lambda _: 0))


def test_what_vllm_takes_beyond_a_copy_has_the_target() -> None:
    pauses = [Pause(seconds=0.5, copy_seconds=0.1)] * 2
    pause, ratio, beyond = vllm_figures_of("v", pauses)
    assert (pause.value, pause.ideal) == (0.5, 0.1)
    assert ratio.value == 5.0
    assert (beyond.value, beyond.target) == (0.4, 0.3)
