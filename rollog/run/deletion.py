"""Deleting a run: its weights, topics, schemas, its directory on this machine, and last its entry in the register.

The entry goes last, so that a deletion that is interrupted can be asked for again, and weights go before the topics
that tell which of a store's files are the run's (`own_weights`).

Whoever still works for the run would make topics or files again, so it must be quiet: no `rollog up` holds its
directory, and nobody writes a heartbeat for a few seconds.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.runs import unregister_run
from rollog.run.local_run import run_directory
from rollog.run.own_subjects import OwnSubjects
from rollog.run.own_weights import OwnWeights
from rollog.run.quiet_run import quiet_seconds_of, require_quiet
from rollog.run.supervisor_lock import sole_supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What belongs to one run. `directory` is what it keeps on this machine.

    Nobody works for it who is not heard for `quiet_seconds`, three heartbeats of any role.
    """

    broker: Broker
    topics: RunTopics
    topic_names: tuple[str, ...]
    weights: OwnWeights
    subjects: OwnSubjects
    directory: Path
    quiet_seconds: float

    @classmethod
    def of(cls, broker: Broker, topics: RunTopics, settings: Settings, home: Path) -> Deletion:
        """Look at what there is; nothing is changed."""
        with broker.admin() as admin:
            start = f"{topics.prefix}.{topics.run}."
            names = tuple(sorted(name for name in admin.list_topics() if name.startswith(start)))
        return cls(
            broker=broker,
            topics=topics,
            topic_names=names,
            weights=OwnWeights.of(broker, topics, settings, home),
            subjects=OwnSubjects.of(settings),
            directory=run_directory(settings, home),
            quiet_seconds=quiet_seconds_of(settings),
        )

    def lines(self) -> list[str]:
        """What would be deleted, for a person."""
        return [
            f"{len(self.topic_names)} topics {self.topics.prefix}.{self.topics.run}.* at {self.broker.address}",
            self.weights.line(),
            *self.subjects.lines(),
            f"checkpoints, logs and summary in {self.directory}"
            if self.directory.exists()
            else f"nothing in {self.directory}",
            f"its entry in {self.topics.prefix}.runs; the name can be used again",
        ]

    def run(self, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
        """Delete, saying what was done. Raises ConfigError, with nothing deleted, where somebody works for the run.

        On a crash at any point, asking for the same again deletes the rest.
        """
        with sole_supervisor(self.directory, self.topics.run):
            if self.topics.workers in self.topic_names:
                require_quiet(
                    self.broker, self.topics, done="deleted", quiet_seconds=self.quiet_seconds, sleep=sleep
                )
            self.weights.delete()
            yield f"deleted {len(self.weights.names)} weights files"
            with self.broker.admin() as admin:
                admin.delete_topics(self.topic_names)
            yield f"deleted {len(self.topic_names)} topics"
            yield from self.subjects.delete()
            shutil.rmtree(self.directory)
            yield f"deleted {self.directory}"
            unregister_run(self.broker, self.topics.prefix, self.topics.run)
            # A copied state directory is known by this folder: without it, the store would be the original's.
            self.weights.remove_folder()
            yield f"run {self.topics.run} is deleted"
