"""Deleting a run: its topics, its weights, its directory on this machine, and last its entry in the register.

The entry goes last, so that a deletion that is interrupted can be asked for again. Of the weights store, which a record
names, only files with the names of weights are deleted, and the directory only if nothing else is in it.

Whoever still works for the run would make topics or files again, so it must be quiet: no `rollog up` holds its
directory, and nobody writes a heartbeat for a few seconds.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import ConfigError
from rollog.kernel.runs import unregister_run
from rollog.kernel.weights import WeightsStore
from rollog.run.local_run import run_directory
from rollog.run.supervisor_lock import sole_supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.settings.settings import Settings

quiet_seconds = 6.0
"""Three heartbeats of dispatcher or trainer, twelve of a worker with the usual settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What belongs to one run: `files` are those of its weights store, `directory` is what it keeps on this machine."""

    broker: Broker
    topics: RunTopics
    topic_names: tuple[str, ...]
    store: WeightsStore
    files: tuple[str, ...]
    directory: Path

    @classmethod
    def of(cls, broker: Broker, topics: RunTopics, settings: Settings, home: Path) -> Deletion:
        """Look at what there is; nothing is changed."""
        store = WeightsStore(settings.weights.uri or "")
        with broker.admin() as admin:
            start = f"{topics.prefix}.{topics.run}."
            names = tuple(sorted(name for name in admin.list_topics() if name.startswith(start)))
        return cls(
            broker=broker,
            topics=topics,
            topic_names=names,
            store=store,
            files=(*store.names(), *store.partial_names()),
            directory=run_directory(settings, home),
        )

    def lines(self) -> list[str]:
        """What would be deleted, for a person."""
        return [
            f"{len(self.topic_names)} topics {self.topics.prefix}.{self.topics.run}.* at {self.broker.address}",
            f"{len(self.files)} weights files in {self.store.public_uri}",
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
            self._refuse_living(sleep)
            with self.broker.admin() as admin:
                admin.delete_topics(self.topic_names)
            yield f"deleted {len(self.topic_names)} topics"
            for name in self.files:
                self.store.delete(name)
            self.store.remove_if_empty()
            yield f"deleted {len(self.files)} weights files"
            shutil.rmtree(self.directory)
            yield f"deleted {self.directory}"
            unregister_run(self.broker, self.topics.prefix, self.topics.run)
            yield f"run {self.topics.run} is deleted"

    def _refuse_living(self, sleep: Callable[[float], None]) -> None:
        if self.topics.workers not in self.topic_names:
            return
        place = TopicPartition(self.topics.workers, 0)
        with self.broker.consumer(client_id="deletion") as consumer:
            before = consumer.end_offsets([place])[place]
            sleep(quiet_seconds)
            after = consumer.end_offsets([place])[place]
        if after != before:
            raise ConfigError(
                f"run {self.topics.run} is not deleted: {after - before} heartbeats came to {self.topics.workers} "
                f"within {quiet_seconds:g} s, so a role works for it; end its roles first "
                f"(`rollog watch --run {self.topics.run}` names them)"
            )
