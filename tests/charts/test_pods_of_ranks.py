"""What the chart starts in each of two pods of a trainer, as processes here: they train, end and begin together."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from support.helm_chart import environment, pods, render, root
from support.launched_ranks import Launches, free_port, patience_seconds
from support.listening import open_to_others, places_of, processes_below
from support.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from support.helm_chart import Manifest

    from rollog.kernel.broker.kafka import KafkaBroker

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

ranks_per_pod = 2
last_rank = 2 * ranks_per_pod - 1
commands = {"keep-running": ("sh", str(root / "infra" / "keep-running.sh")), "python": (sys.executable,)}
values = ("-f", str(root / "infra/helm/values/ranks.yaml"), "--set", f"trainer.ranksPerPod={ranks_per_pod}")


class Pods:
    """Two pods without containers: commands and variables are the chart's, addresses and folders this machine's."""

    def __init__(self, broker: KafkaBroker, directory: Path) -> None:
        self._pod = pods(render(*values))["trainer"]
        self.port = free_port()
        self.launches = Launches(broker, directory, "ranks-in-pods")
        self.started: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(2):
            self.start(number)

    def start(self, number: int) -> None:
        """Start a pod; again where it has ended."""
        folder = self.launches.directory / f"pod-{number}"
        folder.mkdir(exist_ok=True)
        variables = {
            **{
                name: value
                for name, value in environment(self._pod).items()
                if not name.startswith("ROLLOG_")
            },
            "NODE_RANK": str(number),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
        }
        variables = {name: value.replace("/tmp", str(folder)) for name, value in variables.items()}
        variables["KEEP_RUNNING_FINAL"] = str(folder / "final")
        words = [*words_of(self._pod, variables), *self.launches.place]
        self.started[number] = self.launches.start_command(f"pod-{number}", words, variables)

    def ended(self, number: int) -> str | None:
        """The status with which a pod's role has ended for good."""
        path = self.launches.directory / f"pod-{number}" / "ended"
        return path.read_text().strip() or None if path.exists() else None

    def said(self) -> str:
        return "\n".join(self.launches.said(f"pod-{number}") for number in range(2))

    def kill_rank(self, rank: int) -> None:
        """SIGKILL for one rank, wherever it is."""
        (found,) = {
            process.pid
            for pod in self.started.values()
            for process in processes_below(pod.pid)
            if f"\0RANK={rank}\0" in process.environment
        }
        os.kill(found, signal.SIGKILL)


def words_of(pod: Manifest, variables: dict[str, str]) -> list[str]:
    """The container's command as Kubernetes starts it, with this machine's programs."""
    (container,) = pod["containers"]
    words: list[str] = []
    for word in container["command"] + container["args"]:
        for name, value in variables.items():
            word = word.replace(f"$({name})", value)  # noqa: PLW2901 - each variable in turn
        words += commands.get(word, (word,))
    return words


@pytest.fixture
def two_pods(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Pods]:
    made = Pods(kafka_broker, tmp_path)
    yield made
    made.launches.close()


def test_pods_train_begin_again_together_and_all_know_when_it_is_over(two_pods: Pods) -> None:
    launches = two_pods.launches
    launches.send_batch(0, "pod-0")
    launches.sha256_of(1, "pod-0")

    found = {place for pod in two_pods.started.values() for place in places_of(pod.pid)}
    assert open_to_others(found) == {("::", two_pods.port)}, "torchrun's, which the network policy guards"

    two_pods.kill_rank(last_rank)
    launches.send_batch(1, "pod-0")
    launches.sha256_of(2, "pod-0")
    for number in range(2):
        assert "keep-running: status 1, restart 1" in launches.said(f"pod-{number}")
        assert two_pods.ended(number) is None

    # The first pod moves to another node. Without it the other one has ended, and not for good.
    two_pods.started[0].send_signal(signal.SIGTERM)
    assert two_pods.started[0].wait(patience_seconds) != 0
    wait_until(
        lambda: "keep-running: status 75, restart" in launches.said("pod-1"),
        patience_seconds,
        "the other pod",
    )
    two_pods.start(0)
    launches.send_batch(2, "pod-0")
    launches.sha256_of(3, "pod-0")
    launches.run.stop()
    wait_until(
        lambda: all(two_pods.ended(number) for number in range(2)), patience_seconds, "the end of both pods"
    )
    assert [two_pods.ended(number) for number in range(2)] == ["0", "0"], two_pods.said()
    for pod in two_pods.started.values():
        pod.send_signal(signal.SIGTERM)
    assert [pod.wait(patience_seconds) for pod in two_pods.started.values()] == [0, 0]
