"""One run of the demo as a user starts it, `rollog up` in a process of its own, and what its topics say then."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from consumers.progress import RunProgress
from rollog.kernel.broker.reading import read_topic
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ChildFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.harness.own_kafka import OwnKafka
    from consumers.progress import ProgressView
    from rollog.kernel.broker.ports import Broker

prefix = "rollog"
as_published: dict[str, object] = {
    "groups.groups_per_batch": 16,
    "groups.group_size": 16,
    "dispatch.replicate": "true",
    "rollout.capacity": 128,
}
"""What the demo was set to when the published figures of learning, accuracy, recovery and chaos were measured.

These benchmarks keep it, so that their commands still give those figures; the demo itself has moved on.
"""
_read_seconds = 60.0


def demo_run(kafka: OwnKafka, run: str, assignments: Mapping[str, object]) -> ProgressView:
    """Run the demo with some settings replaced, and read it.

    Raises ChildFailed when the run ends with another exit status than 0.
    """
    run_up(kafka, run, assignments)
    with RunProgress(kafka.broker, RunTopics(prefix, run)) as progress:
        return progress.read_to_end(_read_seconds)


def run_up(kafka: OwnKafka, run: str, assignments: Mapping[str, object], words: Sequence[str] = ()) -> None:
    """Run `rollog up` to its end, with some settings replaced and further words, which win.

    Raises ChildFailed with the end of what it said for another exit status than 0.
    """
    command = [sys.executable, "-m", "rollog.cli.main", "up", "--plain"]
    command += ["--home", str(kafka.home), "--broker", kafka.address, "--run", run]
    command += [*set_options(assignments), *words]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)  # our own
    if ended.returncode:
        raise ChildFailed(f"run {run} ended with status {ended.returncode}:\n{ended.stderr[-4000:]}")


def appended(broker: Broker, topic: str) -> Iterator[tuple[bytes, float]]:
    """Value and moment (seconds) of every record of a topic, in order within each partition."""
    for record in read_topic(broker, topic, client_id="bench-reader"):
        if record.value is not None:
            yield record.value, record.timestamp_ms / 1000


def set_options(assignments: Mapping[str, object]) -> list[str]:
    """The words that replace these settings, by dotted key, on the command line of any role."""
    return [word for name, value in assignments.items() for word in ("--set", f"{name}={value}")]


def held_out_accuracy(view: ProgressView, evaluation: str) -> dict[int, float]:
    """Accuracy by version of an evaluation, `greedy` or `sampled`."""
    return {
        version: score.mean_reward for (name, version), score in view.held_out.items() if name == evaluation
    }
