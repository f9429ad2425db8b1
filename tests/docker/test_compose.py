"""`docker compose up` trains the demo, and ordinary Kafka tools see the run. Takes minutes and a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.waiting import wait_until

from rollog.kernel.broker.topics import RunTopics, run_topic_names

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2400)]

compose_file = Path(__file__).parents[2] / "compose.yaml"
roles = {"folders", "topics", "dispatcher", "rollout", "trainer", "watch"}
topics = RunTopics("rollog", "composed")
run_seconds = 1500.0

shorter_run = """
services:
  topics:
    environment:
      ROLLOG_RUN__NUM_STEPS: "12"
      ROLLOG_EVALUATION__NUM_PROMPTS: "128"
      ROLLOG_EVALUATION__EVERY_STEPS: "0"
"""


class Composition:
    """The services of compose.yaml as a project of its own, for a run of a few steps."""

    def __init__(self, directory: Path) -> None:
        override = directory / "shorter.yml"
        override.write_text(shorter_run)
        project = f"rollog-test-{uuid.uuid4().hex[:8]}"
        self._command = ["docker", "compose", "-p", project, "-f", str(compose_file), "-f", str(override)]
        self._environment = {**os.environ, "ROLLOG_RUN": topics.run}
        self._directory = directory

    def call(self, *words: str, timeout_seconds: float = 300) -> str:
        """Output of one `docker compose` command; AssertionError when it fails."""
        ended = self._run(*words, timeout_seconds=timeout_seconds)
        assert ended.returncode == 0, f"{words}: {ended.stderr}\n{self._newest_logs()}"
        return ended.stdout

    def up(self) -> None:
        """Build and start; returns when the run exists, because the roles wait for that."""
        self.call("up", "--build", "-d", "--scale", "rollout=2", timeout_seconds=run_seconds)

    def containers(self) -> dict[str, list[tuple[str, int]]]:
        """State and exit status of every container, by service."""
        lines = self.call("ps", "-a", "--format", "json").splitlines()
        found: dict[str, list[tuple[str, int]]] = {}
        for line in lines:
            one = json.loads(line)
            found.setdefault(one["Service"], []).append((one["State"], one["ExitCode"]))
        return found

    def take_down(self) -> None:
        """What `down` does, and leaves no anonymous volume behind; the named ones stay."""
        self.call("rm", "--stop", "--force", "--volumes")

    def wait_for_step(self, version: int) -> None:
        """Wait until the trainer's container has committed that version or a later one."""

        def is_committed() -> bool:
            time.sleep(2)  # asking costs more than a training step
            shown = self.call("logs", "--no-color", "trainer")
            return any(int(found) >= version for found in re.findall(r"step committed version=(\d+)", shown))

        wait_until(is_committed, run_seconds, f"step {version}")

    def kill_container(self, service: str) -> None:
        """SIGKILL for the first process of a container, as when its machine runs out of memory."""
        container = self.call("ps", "-q", service).split()[0]
        shown = subprocess.run(
            ["docker", "inspect", "--format", "{{.State.Pid}}", container],
            check=True,
            capture_output=True,
            text=True,
        )
        os.kill(int(shown.stdout), signal.SIGKILL)

    def num_restarts(self, service: str) -> int:
        """How often Docker has brought the service's first container back."""
        container = self.call("ps", "-a", "-q", service).split()[0]
        shown = subprocess.run(
            ["docker", "inspect", "--format", "{{.RestartCount}}", container],
            check=True,
            capture_output=True,
            text=True,
        )
        return int(shown.stdout)

    def wait_until_over(self) -> None:
        """Wait until everything but Kafka has ended; fails as soon as something ended with an error."""
        try:
            wait_until(self._is_over, run_seconds, "every role to end")
        except AssertionError as error:
            error.add_note(f"{self.containers()}\n{self._newest_logs()}")
            raise

    def kafka_tool(self, script: str, *words: str) -> str:
        """Output of one of Kafka's own tools, inside its container."""
        place = ("--bootstrap-server", "localhost:9092")
        return self.call("exec", "-T", "kafka", f"/opt/kafka/bin/{script}", *place, *words)

    def summary(self) -> dict[str, Any]:
        """summary.json out of the volume."""
        copy = self._directory / "summary.json"
        self.call("cp", f"watch:/var/lib/rollog/runs/{topics.run}/summary.json", str(copy))
        found: dict[str, Any] = json.loads(copy.read_text())
        return found

    def _is_over(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._run("wait", "watch", timeout_seconds=5)
        ended = [state for name, states in self.containers().items() if name in roles for state in states]
        failed = [state for state in ended if state[0] == "exited" and state[1] != 0]
        assert not failed, self._newest_logs()
        return all(state[0] == "exited" for state in ended)

    def _newest_logs(self) -> str:
        return self._run("logs", "--no-color", "--tail", "40", timeout_seconds=60).stdout

    def _run(self, *words: str, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env=self._environment,
        )


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    """A run in containers that is over. It was brought down on the way, and its trainer's container was killed."""
    require_engine()
    composition = Composition(tmp_path_factory.mktemp("compose"))
    try:
        composition.up()
        composition.wait_for_step(2)
        composition.take_down()
        composition.up()
        composition.wait_for_step(4)
        composition.kill_container("trainer")
        composition.wait_until_over()
        yield composition
    finally:
        composition.call("down", "--volumes")


def require_engine() -> None:
    """Without a container engine these tests are skipped, and fail where ROLLOG_REQUIRE_DOCKER is set."""
    if shutil.which("docker") is None:
        problem = "there is no docker command"
    else:
        asked = subprocess.run(["docker", "compose", "ls"], check=False, capture_output=True, text=True)
        if asked.returncode == 0:
            return
        problem = f"the container engine does not answer: {asked.stderr.strip()}"
    if os.environ.get("ROLLOG_REQUIRE_DOCKER"):
        pytest.fail(problem)
    pytest.skip(problem)


def offsets_of_group(composed: Composition, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """Committed offset and end of each partition, as kafka-consumer-groups.sh shows them."""
    shown = composed.kafka_tool("kafka-consumer-groups.sh", "--describe", "--group", group)
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
        **dict.fromkeys(roles, 1),
        "rollout": 2,
        "kafka": 1,
    }
    assert {state for name in roles for state in containers[name]} == {("exited", 0)}
    assert containers["kafka"] == [("running", 0)]


def test_kafka_topics_lists_every_topic_of_the_run(composed: Composition) -> None:
    listed = composed.kafka_tool("kafka-topics.sh", "--list").split()

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
    shown = composed.kafka_tool("kafka-get-offsets.sh", "--topic", topics.samples)

    counts = [int(line.rsplit(":", 1)[1]) for line in shown.split()]
    assert sum(counts) == composed.summary()["samples_produced"]


def test_a_run_that_is_over_ends_by_itself_when_it_is_brought_up_again(composed: Composition) -> None:
    before = composed.summary()
    composed.take_down()

    composed.up()
    composed.wait_until_over()

    assert composed.summary()["ledger_head"] == before["ledger_head"]
    assert "exists already" in composed.call("logs", "topics")
