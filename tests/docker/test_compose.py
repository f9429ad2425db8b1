"""`docker compose up` trains the demo, and ordinary Kafka tools see the run. Takes minutes and a container engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.composition import Composition, require_engine

from rollog.kernel.broker.topics import RunTopics, run_topic_names

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2400)]

compose_file = Path(__file__).parents[2] / "compose.yaml"
topics = RunTopics("rollog", "composed")

shorter_run = """
services:
  topics:
    environment:
      ROLLOG_RUN__NUM_STEPS: "12"
      ROLLOG_EVALUATION__NUM_PROMPTS: "128"
      ROLLOG_EVALUATION__EVERY_STEPS: "0"
"""


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    """A run in containers that is over. It was brought down on the way, and its trainer's container was killed."""
    require_engine()
    composition = Composition(
        tmp_path_factory.mktemp("compose"), compose_file, run=topics.run, override=shorter_run
    )
    try:
        composition.up("--scale", "rollout=2")
        composition.wait_for_step(2)
        composition.take_down()
        composition.up("--scale", "rollout=2")
        composition.wait_for_step(4)
        composition.kill_container("trainer")
        composition.wait_until_over()
        yield composition
    finally:
        composition.call("down", "--volumes")


def kafka_tool(composed: Composition, script: str, *words: str) -> str:
    """Output of one of Kafka's own tools, inside its container."""
    place = ("--bootstrap-server", "localhost:9092")
    return composed.call("exec", "-T", "kafka", f"/opt/kafka/bin/{script}", *place, *words)


def offsets_of_group(composed: Composition, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """Committed offset and end of each partition, as kafka-consumer-groups.sh shows them."""
    shown = kafka_tool(composed, "kafka-consumer-groups.sh", "--describe", "--group", group)
    rows = re.findall(
        rf"^{re.escape(group)}\s+{re.escape(topic)}\s+(\d+)\s+(\d+)\s+(\d+)\s", shown, re.MULTILINE
    )
    return {int(partition): (int(offset), int(end)) for partition, offset, end in rows}


def test_the_demo_learns_and_every_sample_is_accounted_for(composed: Composition) -> None:
    summary = composed.summary()

    assert (summary["run"], summary["closed"], summary["steps"]) == (topics.run, True, 12)
    assert (summary["engine"], summary["trainer"]) == ("vllm", "deepspeed")
    assert summary["held_out_prompts"] == 128
    assert summary["held_out_after"] > summary["held_out_before"]
    assert sum(summary["samples_by_disposition"].values()) == summary["samples_produced"]
    assert summary["samples_trained"] == 12 * 256
    assert summary["wall_seconds"] > 0


def test_a_killed_container_came_back_and_no_step_was_trained_twice(composed: Composition) -> None:
    assert composed.num_restarts("trainer") == 1
    assert composed.num_restarts("dispatcher") == 0
    shown = composed.call("run", "--rm", "--no-deps", "topics", "audit", topics.run)
    assert "nothing is off" in shown
    assert composed.summary()["steps"] == 12


def test_every_role_ends_by_itself_and_kafka_stays(composed: Composition) -> None:
    containers = composed.containers()

    assert {name: len(states) for name, states in containers.items()} == {
        **dict.fromkeys(composed.roles, 1),
        "rollout": 2,
        "kafka": 1,
    }
    assert {state for name in composed.roles for state in containers[name]} == {("exited", 0)}
    assert containers["kafka"] == [("running", 0)]


def test_kafka_topics_lists_every_topic_of_the_run(composed: Composition) -> None:
    listed = kafka_tool(composed, "kafka-topics.sh", "--list").split()

    assert {*run_topic_names(topics), "rollog.runs"} <= set(listed)


def test_kafka_consumer_groups_shows_how_far_the_trainer_is(composed: Composition) -> None:
    offsets = offsets_of_group(composed, topics.trainer_group, topics.samples)

    assert len(offsets) == 4
    assert all(offset == end for offset, end in offsets.values())
    assert sum(end for _, end in offsets.values()) == composed.summary()["samples_produced"]


def test_kafka_consumer_groups_shows_both_workers(composed: Composition) -> None:
    offsets = offsets_of_group(composed, topics.worker_group, topics.tasks)

    assert len([offset for offset, _ in offsets.values() if offset > 0]) == 2


def test_kafka_get_offsets_counts_the_samples(composed: Composition) -> None:
    shown = kafka_tool(composed, "kafka-get-offsets.sh", "--topic", topics.samples)

    counts = [int(line.rsplit(":", 1)[1]) for line in shown.split()]
    assert sum(counts) == composed.summary()["samples_produced"]


def test_a_run_that_is_over_ends_by_itself_when_it_is_brought_up_again(composed: Composition) -> None:
    before = composed.summary()
    composed.take_down()

    composed.up("--scale", "rollout=2")
    composed.wait_until_over()

    assert composed.summary()["ledger_head"] == before["ledger_head"]
    assert "exists already" in composed.call("logs", "topics")
