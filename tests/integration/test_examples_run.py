"""The example configurations and README's own example run as they stand, with a stand-in for a model from a hub."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.stand_in_model import save_stand_in
from support.vllm_server import server_key, vllm_server

from rollog.settings.sources import load_settings

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(400)]

root = Path(__file__).resolve().parents[2]
short = ("run.num_steps=2", "sampling.max_tokens=12")
unfiltered = ("groups.filter_zero_signal=false", "groups.reward_mean_bounds=null")
"""A random model gives no right answers, so that every group would be filtered."""


def run_up(directory: Path, config: Path, home: Path, *assignments: str) -> dict[str, object]:
    """The summary of a run from `config`, started in `directory`."""
    flags = [word for assignment in (*short, *unfiltered, *assignments) for word in ("--set", assignment)]
    command = [sys.executable, "-m", "rollog.cli.main", "up", "--plain", "--run", "example"]
    ended = subprocess.run(
        [*command, "--config", str(config), "--home", str(home), *flags],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    summary: dict[str, object] = json.loads((home / "runs" / "example" / "summary.json").read_text())
    return summary


@pytest.fixture
def home(tmp_path: Path, cache_directory: Path) -> Path:
    """A state directory that has Kafka's jars."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "cache").symlink_to(cache_directory, target_is_directory=True)
    return tmp_path / "home"


fewer = {
    "gpu_24gb": ("groups.groups_per_batch=4",),
    "gpu_80gb": ("groups.groups_per_batch=4",),
    # Two ranks that are gloo's on a CPU; ZeRO 3 is tried in tests/integration/test_several_ranks.py.
    "eight_gpus": ("groups.groups_per_batch=4", "trainer.num_ranks=2"),
    # The stand-in's words are bytes. What the models that are made for these two learn is measured by benchmarks.
    "guessing": ("groups.groups_per_batch=4", "evaluation.num_prompts=4", "model.max_context_tokens=768"),
    "reasoning_gym": (
        "groups.groups_per_batch=4",
        "evaluation.num_prompts=4",
        "model.max_context_tokens=256",
    ),
}


@pytest.mark.parametrize("name", ["huggingface_model", "chat_dataset", "agent", "one_gpu", *fewer])
def test_an_example_runs(name: str, home: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    model = save_stand_in(tmp_path / "model")
    path = root / "examples" / f"{name}.toml"
    summary = run_up(root, path, home, f"model.path={model}", *fewer.get(name, ()))
    assert (summary["steps"], summary["closed"]) == (2, True)


def test_the_example_of_a_remote_engine_runs_at_a_server(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    monkeypatch.setenv("SERVER_KEY", server_key)
    path = root / "examples" / "remote_engine.toml"
    model, weights = save_stand_in(tmp_path / "model"), tmp_path / "weights"
    weights.mkdir()
    with vllm_server(
        model,
        weights,
        tmp_path / "server.log",
        max_context_tokens=load_settings(path).model.max_context_tokens,
    ) as server:
        places = (
            f"model.path={model}",
            f"weights.uri={weights.as_uri()}",
            f"rollout.server_address={server.address}",
        )
        summary = run_up(root, path, home, *places)
    assert (summary["steps"], summary["closed"]) == (2, True)


def blocks(language: str) -> list[str]:
    """Code blocks of README's section about an own model."""
    section = (root / "README.md").read_text().partition("## Your own model")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def test_the_example_of_the_readme_runs(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "run.toml").write_text(blocks("toml")[0])
    (directory / "my_rewards.py").write_text(blocks("python")[0])
    for name in ("train", "held_out"):
        (directory / f"{name}.jsonl").write_text(blocks("json")[0])
    model = save_stand_in(tmp_path / "model")
    (directory / "models").mkdir()
    shutil.copytree(model, directory / "models" / "qwen2.5-0.5b")

    summary = run_up(directory, directory / "run.toml", home)
    assert (summary["steps"], summary["closed"]) == (2, True)
