"""The role: parts chosen by the configuration, errors that name the key, a run from start to end."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.waiting import max_wait_seconds

from producers.engines.choice import make_engine
from producers.engines.vllm import vllm_environment
from producers.rewards.in_process import InProcessRewards
from producers.rewards.pool import RewardPool
from producers.rewards.shuffled import ShuffledRewards
from producers.rollout.role import make_parts, run_rollout
from rollog.kernel.errors import ConfigError, WeightsError
from rollog.kernel.metrics import Metrics
from rollog.settings.generation import RewardConfig, RolloutConfig
from rollog.settings.run import ModelConfig
from schemas import Status

if TYPE_CHECKING:
    from support.worker_thread import Stage


function = "support.reward_functions_for_tests:reward"


def test_a_worker_process_runs_until_the_run_is_closed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    reward = RewardConfig(function=function, num_processes=0)
    settings = replace(stage.settings(), reward=reward)
    arguments = (settings, stage.broker, Metrics(), threading.Event())
    thread = threading.Thread(target=run_rollout, args=arguments)
    thread.start()
    stage.worker_id = stage.wait_for_status(lambda status: status.served_version == 0).worker_id
    assert stage.worker_id.startswith("worker-")
    stage.give_grant()
    stage.order(stage.task(0, reward=function))
    assert stage.sample().status is Status.FINISHED
    stage.close_run()
    thread.join(max_wait_seconds)
    assert not thread.is_alive()


def test_the_error_that_ends_the_worker_comes_out_by_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    reward = RewardConfig(function=function, num_processes=0)
    settings = replace(stage.settings(load_attempts=1), reward=reward)
    stage.send(stage.topics.weights, stage.store.publish(1, b"no weights file"))
    with pytest.raises(WeightsError, match="version 1 could not be loaded"):
        run_rollout(settings, stage.broker, Metrics(), threading.Event())


def test_rewards_are_made_as_configured(stage: Stage) -> None:
    settings = stage.settings()
    shuffled = RewardConfig(function=function, control="shuffled")
    parts = make_parts(replace(settings, reward=shuffled), stage.broker, Metrics(), "w")
    assert isinstance(parts.training_rewards, ShuffledRewards)
    assert isinstance(parts.evaluation_rewards, RewardPool)
    plain = RewardConfig(function=function, num_processes=0)
    parts = make_parts(replace(settings, reward=plain), stage.broker, Metrics(), "w")
    assert isinstance(parts.training_rewards, InProcessRewards)
    assert parts.training_rewards is parts.evaluation_rewards


def test_missing_settings_are_named(stage: Stage) -> None:
    with pytest.raises(ConfigError, match=r"reward\.function"):
        make_parts(replace(stage.settings(), reward=RewardConfig()), stage.broker, Metrics(), "w")
    with pytest.raises(ConfigError, match=r"model\.path"):
        make_engine(ModelConfig(), RolloutConfig(engine="transformers"), 0)


def test_cpu_settings_of_vllm_are_not_forced_on_a_gpu() -> None:
    on_gpu = vllm_environment(on_cpu=False, num_threads=1)
    on_cpu = vllm_environment(on_cpu=True, num_threads=3)
    assert on_cpu["OMP_NUM_THREADS"] == "3"
    assert on_gpu.keys() < on_cpu.keys()
    assert not {"OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE", "VLLM_ENABLE_V1_MULTIPROCESSING"} & on_gpu.keys()


def test_the_role_is_imported_without_heavy_libraries() -> None:
    heavy = "{'torch', 'vllm', 'transformers', 'deepspeed'}"
    code = f"import sys, producers.rollout.role; assert not {heavy} & sys.modules.keys(), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
