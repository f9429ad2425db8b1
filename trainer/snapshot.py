"""A trainer's snapshot: what it has read of `steps` and `tasks`, with the places up to which it has read.

A start with one reads what was written since, and the steps that it redoes. It is void unless it was made from the very
log that is there, for the same run. Losing it costs time only. Whoever wrote it, an overtaken trainer too: it holds
committed records alone, so it tells of a part of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.snapshot_file import SnapshotFile
from rollog.rules.issued_tasks import IssuedTasks
from rollog.rules.ledger_snapshot import ledger_from_plain, ledger_to_plain
from rollog.rules.snapshot_fit import (
    digest_of_settings,
    positions_from_plain,
    positions_to_plain,
    record_from_plain,
    record_to_plain,
    require_fit,
    require_settings,
)
from schemas import LedgerRecord
from trainer.control import KnownTasks
from trainer.recorded.history import History

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.kernel.broker.ports import Broker, Consumer
    from trainer.control import ControlReader
    from trainer.settings import TrainerSettings


class TrainerSnapshot:
    """The snapshot of one trainer, in the directory of its run."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._topics = RunTopics(settings.prefix, settings.run)
        self._file = SnapshotFile(settings.snapshot, "trainer", settings.snapshot_every_seconds)

    def read(self, broker: Broker) -> tuple[History, KnownTasks]:
        """Where reading begins: where the snapshot has come, or at the beginning of the log if it is not usable."""

        def fitting(plain: Mapping[str, Any]) -> tuple[History, KnownTasks]:
            with broker.consumer(client_id="trainer-snapshot") as consumer:
                return self._from_plain(plain, consumer)

        return self._file.read_as(fitting) or (History(), KnownTasks())

    def write_if_due(self, history: History, control: ControlReader, now: float) -> None:
        """Write one if it is time; call when every record that was committed is in `history`."""
        if self._file.is_due(now):
            self.write(history, control, now)

    def write(self, history: History, control: ControlReader, now: float) -> None:
        """Write one now, if the ledger has begun."""
        if history.state.has_genesis:
            self._file.write(self._to_plain(history, control.known), now)

    def _to_plain(self, history: History, known: KnownTasks) -> dict[str, Any]:
        assert history.first is not None, "the ledger has begun"
        return {
            "settings": digest_of_settings(self._facts()),
            "ledger": ledger_to_plain(history.state),
            "first": record_to_plain(history.first),
            "steps": list(history.steps.items()),
            "rebases": sorted(history.rebases),
            "num_optimizer_steps": history.num_optimizer_steps,
            "end": history.end,
            "issued": known.issued.to_plain(),
            "positions": positions_to_plain(known.positions),
            "newest_group": known.newest_group,
        }

    def _from_plain(self, plain: Mapping[str, Any], consumer: Consumer) -> tuple[History, KnownTasks]:
        """Raises ValueError and others for what does not fit."""
        require_settings(plain, self._facts())
        positions = positions_from_plain(plain["positions"])
        steps = TopicPartition(self._topics.steps, 0)
        tasks = {
            TopicPartition(self._topics.tasks, number) for number in range(self._settings.broker.max_workers)
        }
        if positions.keys() != tasks:
            raise ValueError("it was made of other topics")
        history = History(
            first=record_from_plain(LedgerRecord, plain["first"]),
            state=ledger_from_plain(plain["ledger"]),
            steps={int(version): int(offset) for version, offset in plain["steps"]},
            rebases={int(version) for version in plain["rebases"]},
            num_optimizer_steps=int(plain["num_optimizer_steps"]),
            end=int(plain["end"]),
        )
        require_fit(consumer, steps.topic, history.state.head, {steps: history.end, **positions})
        known = KnownTasks(
            issued=IssuedTasks.from_plain(plain["issued"]),
            positions=positions,
            newest_group=int(plain["newest_group"]),
        )
        return history, known

    def _facts(self) -> list[object]:
        """All that decides what is read as a task of the run."""
        settings = self._settings
        return [
            settings.prefix,
            settings.run,
            settings.run_config.seed,
            settings.broker.samples_partitions,
            settings.broker.max_workers,
            settings.groups.model_dump(mode="json"),
        ]
