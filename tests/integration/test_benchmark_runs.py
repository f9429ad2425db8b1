"""A benchmark's run: real roles, simulated engine, on either broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.waiting import wait_until

from benchmarks.agentic.run_measurement import measure_run as measure_episodes
from benchmarks.agentic.variants import EpisodeVariant
from benchmarks.harness.variant import Job, Variant
from benchmarks.scaling.measure import answering_variant, measure_dispatcher, measure_workers, worker_variant
from benchmarks.scheduling.asynchrony import training_comparisons
from benchmarks.scheduling.ideal import ideal_seconds
from benchmarks.scheduling.run_measurement import measure_run
from benchmarks.scheduling.slow_worker import slow_worker_comparisons
from benchmarks.scheduling.steady_redundancy import steady_redundancy_comparisons

if TYPE_CHECKING:
    from pathlib import Path

    from support.session_kafka import SessionKafka

    from rollog.kernel.broker.ports import Broker


def a_variant(**changes: object) -> Variant:
    values: dict[str, object] = {"name": "small", "num_groups": 3, "group_size": 2, "slots_per_worker": 6}
    return Variant(**(values | changes))  # type: ignore[arg-type]


def a_job(variant: Variant, number: int = 0, *, speed: float = 200.0) -> Job:
    return Job(variant=variant, seed=0, number=number, speed=speed)


@pytest.mark.parametrize("scheduling", ["queue", "batch"])
def test_a_batch_is_collected_with_a_task_for_each_rollout_of_each_group_it_took(
    broker: Broker, tmp_path: Path, scheduling: str
) -> None:
    variant = a_variant(scheduling=scheduling, pass_rate=0.5)
    job = a_job(variant, 1)
    num_failing = [job.workload.passes(group) for group in range(30)].index(True)
    assert num_failing > 0
    found = measure_run(job, broker, tmp_path)
    assert found.ideal_seconds == ideal_seconds(variant, job.workload)
    assert found.num_tasks >= 2 * (3 + num_failing)
    assert found.num_tasks % 2 == 0
    assert list(tmp_path.iterdir()) == []
    with broker.admin() as admin:
        # Kafka lists a topic for a moment after it is deleted.
        wait_until(
            lambda: not any(".bench-" in name for name in admin.list_topics()),
            message="the topics of the run are gone",
        )


def test_without_replication_one_task_stands_for_a_group(broker: Broker, tmp_path: Path) -> None:
    variant = a_variant(replicate=False, num_workers=2, slots_per_worker=2)
    found = measure_run(a_job(variant), broker, tmp_path)
    assert found.num_tasks == 3


def test_with_a_judge_the_use_of_the_slots_is_measured(broker: Broker, tmp_path: Path) -> None:
    variant = a_variant(num_groups=6, reward_seconds=40.0, warm_up_seconds=1.0)
    job = a_job(variant)
    found = measure_run(job, broker, tmp_path)
    assert found.num_tasks == 6 * 2
    # Told from when samples were appended, which a busy machine delays: a short run may seem fuller than full.
    assert found.busy_share > 0
    assert found.seconds > max(
        job.workload.seconds(group, replica) for group in range(6) for replica in range(2)
    )


def test_a_variant_that_cannot_work_says_what_ended_it(broker: Broker, tmp_path: Path) -> None:
    variant = a_variant(num_groups=3000)
    with pytest.raises(ValueError, match="3000 groups"):
        measure_run(a_job(variant), broker, tmp_path)


def test_a_run_of_several_steps_tells_what_became_of_its_longest_prompts(
    broker: Broker, tmp_path: Path
) -> None:
    variant = a_variant(num_steps=3, alpha=1.0, belongs_to_prompt=True, variation=0.1, longest_seconds=60.0)
    found = measure_run(a_job(variant), broker, tmp_path)
    assert found.num_tasks >= 3 * 3 * 2
    assert 0.0 <= found.long_trained <= 1.0
    assert found.seconds > 0


@pytest.mark.parametrize("number", [0, 3, 6], ids=["turns_and_alpha_0", "alpha_2", "auto"])
def test_a_training_run_is_measured_beside_its_ideal(broker: Broker, tmp_path: Path, number: int) -> None:
    variant = training_comparisons(1, steps=3)[number].mode
    job = a_job(variant, speed=400.0)
    found = measure_run(job, broker, tmp_path)
    assert found.ideal_seconds == ideal_seconds(variant, job.workload) > 0
    assert found.num_tasks >= 3 * 64
    assert found.seconds > 0


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(0, id="queue"),
        *(
            pytest.param(number, id=name, marks=pytest.mark.slow)
            for number, name in enumerate(["static", "batch", "without_redundancy"], start=1)
        ),
    ],
)
def test_a_run_with_a_slow_worker_comes_to_its_end(broker: Broker, tmp_path: Path, number: int) -> None:
    variant = slow_worker_comparisons(1, steps=2)[number].mode
    found = measure_run(a_job(variant), broker, tmp_path)
    # A group that ends early, on a machine with other work, needs no redundant replica that is not handed out yet.
    assert found.num_tasks >= 2 * 8 * 4
    assert found.seconds > 0


def test_a_run_of_several_steps_with_redundant_prompts_comes_to_its_end(
    broker: Broker, tmp_path: Path
) -> None:
    variant = steady_redundancy_comparisons(1, steps=2)[0].mode
    found = measure_run(a_job(variant), broker, tmp_path)
    assert found.num_tasks >= 2 * 8 * 8
    assert found.seconds > 0


@pytest.mark.broker
@pytest.mark.slow
def test_the_load_of_real_workers_is_measured_with_a_process_for_each_role(
    embedded_kafka: SessionKafka, tmp_path: Path
) -> None:
    job = a_job(worker_variant(2), speed=20.0)
    load = measure_workers(job, embedded_kafka.address, tmp_path / "run")
    assert load.num_tasks > 0
    assert load.dispatcher_cpu_seconds > 0
    assert 0 < load.share_of_linear < 1.5


@pytest.mark.broker
@pytest.mark.slow
def test_the_dispatcher_is_measured_with_workers_that_answer_at_once(
    embedded_kafka: SessionKafka, tmp_path: Path
) -> None:
    job = a_job(answering_variant(2), speed=1.0)
    load = measure_dispatcher(job, embedded_kafka.address, tmp_path / "run", seconds=1.0)
    assert load.num_tasks > 0
    assert load.dispatcher_cpu_seconds > 0


def test_a_run_of_episodes_is_measured_beside_its_ideal(broker: Broker, tmp_path: Path) -> None:
    variant = EpisodeVariant(
        name="episodes", num_groups=2, group_size=2, slots_per_worker=4, num_turns=3, sigma=5.0
    )
    found = measure_episodes(Job(variant=variant, seed=0, number=0, speed=50.0), broker, tmp_path)
    assert (found.num_tasks, found.num_turns, found.failed) == (4, 12, 0)
    assert found.seconds > 0.99 * found.ideal_seconds
