"""Runs of episodes, small ones, and what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.agentic.episode_run import name_of
from benchmarks.agentic.figures import figures_of
from benchmarks.agentic.measure import jobs_of
from benchmarks.agentic.run_measurement import EpisodeResult, measure_run
from benchmarks.agentic.variants import EpisodeVariant, asynchrony_comparisons, redundancy_comparisons
from benchmarks.harness.variant import Job
from producers.engines.ports import GenerationRequest
from rollog.kernel.broker.memory import MemoryBroker
from rollog.rules.seeds import derived_seed
from rollog.rules.task_names import training_seed
from schemas import SamplingParameters

if TYPE_CHECKING:
    from pathlib import Path


def a_variant(**changes: object) -> EpisodeVariant:
    values: dict[str, object] = {
        "name": "small",
        "num_groups": 2,
        "group_size": 2,
        "slots_per_worker": 4,
        "num_turns": 2,
        "sigma": 10.0,
    }
    return EpisodeVariant(**(values | changes))  # type: ignore[arg-type]


def measured(variant: EpisodeVariant, home: Path, *, speed: float = 100.0) -> EpisodeResult:
    return measure_run(Job(variant=variant, seed=0, number=0, speed=speed), MemoryBroker(), home)


def test_a_request_names_its_episode_by_group_replica_and_attempt() -> None:
    request = GenerationRequest(
        request_id="1.9/5#3",
        prompt_token_ids=list(b"12:7/5/2    "),
        sampling=SamplingParameters(temperature=1.0, max_tokens=12),
        seed=derived_seed(training_seed(0, 12, 5, 2), 3),
    )
    assert name_of(request) == "12/5/2"


@pytest.mark.parametrize("in_lock_step", [False, True])
def test_episodes_take_as_long_as_they_drew(tmp_path: Path, *, in_lock_step: bool) -> None:
    found = measured(a_variant(in_lock_step=in_lock_step), tmp_path)
    assert (found.num_tasks, found.num_turns, found.failed) == (4, 8, 0)
    assert found.seconds > 0.99 * found.ideal_seconds
    assert found.cpu_seconds > 0
    assert list(tmp_path.iterdir()) == []


def test_one_that_hangs_is_timed_out_ordered_again_and_costs_no_other_episode(tmp_path: Path) -> None:
    variant = a_variant(hang_share=0.3, mean=1.0, sigma=0.0)
    hanging = [variant.draws(0, 0).of(group, replica, 0) for group in range(2) for replica in range(2)]
    num_hanging = sum(each.hangs_at is not None for each in hanging)
    assert num_hanging > 0
    found = measured(variant, tmp_path, speed=20.0)
    assert found.failed >= num_hanging
    assert found.num_turns == 8
    assert found.kills == 0
    assert found.seconds > variant.timeout_seconds


def test_the_redundant_ones_are_cancelled(tmp_path: Path) -> None:
    variant = a_variant(redundant_groups=1, redundant_replicas=1, slots_per_worker=9, sigma=20.0)
    found = measured(variant, tmp_path, speed=20.0)
    assert found.num_tasks >= 9
    assert found.cancelled > 0


def test_training_of_several_steps_is_measured_by_the_step(tmp_path: Path) -> None:
    variant = a_variant(num_steps=3, alpha=1.0, train_seconds=20.0)
    found = measured(variant, tmp_path)
    assert found.num_turns >= 3 * 8
    assert found.seconds > 19


def test_the_runs_of_a_draw_follow_one_another() -> None:
    jobs = jobs_of(redundancy_comparisons(256), num_draws=2, seed=5, speed=3.0)
    names = ["redundancy.32x8", "redundancy.36x9", "redundancy.36x12"]
    assert [(job.variant.name, job.number) for job in jobs] == [(n, draw) for draw in (0, 1) for n in names]
    assert {(job.seed, job.speed) for job in jobs} == {(5, 3.0)}


def a_result(seconds: float, ideal_seconds: float) -> EpisodeResult:
    return EpisodeResult(
        seconds=seconds,
        ideal_seconds=ideal_seconds,
        real_seconds=1.0,
        cpu_seconds=3.0,
        num_tasks=1024,
        num_turns=1000,
        failed=0,
        cancelled=0,
        kills=0,
    )


def test_a_speed_up_stands_beside_its_ideal_and_one_that_owes_nothing_to_a_slow_baseline() -> None:
    baseline, mode = a_result(110.0, 100.0), a_result(50.0, 40.0)
    runs = {"lock_step.sigma_10": {0: baseline}, "asynchronous.sigma_10": {0: mode, 1: replace(mode)}}
    found = figures_of(asynchrony_comparisons(512), runs, least_share_of_ideal=0.95)
    figures = {figure.name.removeprefix("agentic."): figure for figure in found}
    speedup = figures["asynchrony.sigma_10.speedup"]
    assert (speedup.value, speedup.ideal, speedup.num_draws) == (2.2, 2.5, 1)
    assert figures["asynchrony.sigma_10.speedup_over_ideal_baseline"].value == 2.0
    assert figures["asynchrony.sigma_10.efficiency"].value == 0.8
    assert figures["asynchronous.sigma_10.orders"].value == 2.0
    assert figures["lock_step.sigma_10.cpu"].value == 3.0
