"""A dispatcher's snapshot: what it saves reading, when it is not used, and that losing it costs nothing else."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.builders import a_header
from support.dispatcher_driver import DispatcherDriver
from support.rebuilt_state import facts_of_state, rebuilt_state

from producers.dispatcher.credits import CreditLedger, OpenTask
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.snapshot_file import SnapshotFile
from rollog.settings.generation import EvaluationConfig
from rollog.settings.run import RunConfig
from schemas import ClosedGroup, DeadLetter, Disposition, Kind, Status
from schemas.codec import encode
from trainer.buffer.verdicts import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from producers.dispatcher.dispatcher import Dispatcher
    from rollog.kernel.broker.memory_readers import MemoryConsumer
    from rollog.kernel.broker.ports import Record


class CountingBroker(MemoryBroker):
    """Notes the first offset that is read of each partition, and how many records."""

    def __init__(self) -> None:
        super().__init__(block_seconds=0.0)
        self.num_read: Counter[str] = Counter()
        self.first_read: dict[tuple[str, int], int] = {}

    def consumer(self, *, client_id: str, group_id: str | None = None) -> MemoryConsumer:
        consumer = super().consumer(client_id=client_id, group_id=group_id)
        if client_id == "dispatcher":
            poll = consumer.poll
            consumer.poll = lambda *args, **named: self._noted(poll(*args, **named))  # type: ignore[method-assign]
        return consumer

    def _noted(self, records: list[Record]) -> list[Record]:
        for record in records:
            self.num_read[record.topic.rsplit(".", 1)[-1]] += 1
            place = (record.topic, record.partition)
            self.first_read[place] = min(record.offset, self.first_read.get(place, record.offset))
        return records


class Snapshotted:
    """A run of which some groups are trained, one group is under way, and the dispatcher has left in order."""

    def __init__(self, directory: Path, *, num_trained: int = 3, **sections: Any) -> None:
        self.path = directory / "state" / "dispatcher-snapshot.json"
        self.broker = CountingBroker()
        self.driver = DispatcherDriver(memory_broker=self.broker, num_held_out=2, **sections)
        self.driver.settings = replace(
            self.driver.settings, snapshot=self.path, snapshot_every_seconds=float("inf")
        )
        self.driver.publish_ledger()
        self.driver.beat(capacity=4)
        dispatcher = self.driver.dispatcher()
        for _ in range(num_trained):
            self.train_a_group(dispatcher)
        self.driver.turn(dispatcher)
        self.end_one(dispatcher, status=Status.FAILED)
        self.driver.turn(dispatcher)
        self.next_group_id = dispatcher.state.groups.next_group_id
        self.leave(dispatcher)

    def leave(self, dispatcher: Dispatcher) -> None:
        """An orderly end."""
        stop = _Set()
        dispatcher.run(stop)  # type: ignore[arg-type]
        dispatcher.close()

    def train_a_group(self, dispatcher: Dispatcher) -> None:
        driver = self.driver
        driver.turn(dispatcher)
        verdicts = []
        marks = list(driver.ledger.state.low_water_marks)
        for task in [open_task.task for open_task in dispatcher.state.credits.all()]:
            if task.kind is Kind.EVALUATION:
                driver.end(task)
        driver.turn(dispatcher)
        tasks = [open_task.task for open_task in dispatcher.state.credits.all()]
        group = min(task.group_id for task in tasks)
        for task in tasks:
            if task.group_id == group:
                offset = driver.end(task, version=driver.ledger.state.version)
                header = a_header(group, task.replica, offset=offset, partition=task.sample_partition)
                verdicts.append(verdict_of(header, Disposition.TRAINED, version=0))
                marks[task.sample_partition] = offset + 1
        closed = [ClosedGroup(group_id=group, outcome=Disposition.TRAINED)]
        driver.ledger.step(verdicts, closed, marks=marks)
        driver.publish_ledger()
        driver.beat(capacity=4, served_version=driver.ledger.state.version)
        driver.turn(dispatcher)

    def end_one(self, dispatcher: Dispatcher, **changes: Any) -> None:
        open_task = dispatcher.state.credits.all()[0]
        self.driver.end(open_task.task, **changes)

    def facts(self, *, with_snapshot: bool = True, **changes: Any) -> dict[str, Any]:
        settings = replace(self.driver.settings, **changes)
        if not with_snapshot:
            settings = replace(settings, snapshot=None)
        return facts_of_state(rebuilt_state(self.broker, settings, len(self.driver.held_out)))


class _Set:
    """An event that is set."""

    def is_set(self) -> bool:
        return True


def test_a_restart_decodes_nothing_below_the_positions_of_the_snapshot(tmp_path: Path) -> None:
    run = Snapshotted(tmp_path)
    content = SnapshotFile(run.path, "dispatcher").read()
    assert content is not None
    run.broker.num_read.clear()
    run.broker.first_read.clear()
    run.driver.dispatcher()
    marks = run.driver.ledger.state.low_water_marks
    topics = run.driver.topics
    for topic, partition, position in content["positions"]:
        least = position
        if topic == topics.samples:
            least = min(position, marks[partition])
        elif topic == topics.steps:
            least = position - 1  # the record that shows whose log it is
        assert run.broker.first_read.get((topic, partition), least) >= least
    # The failed sample has no verdict yet; the fences are those of the new epoch.
    assert run.broker.num_read["samples"] == 1
    assert run.broker.num_read["steps"] == 1
    assert run.broker.num_read["tasks"] == 3


def test_what_a_snapshot_and_the_rest_of_the_log_say_is_what_the_whole_log_says(tmp_path: Path) -> None:
    run = Snapshotted(tmp_path, evaluation=EvaluationConfig(every_steps=0, sampled=False, num_prompts=2))
    assert run.facts() == run.facts(with_snapshot=False)
    dispatcher = run.driver.dispatcher()
    run.driver.turn(dispatcher)
    run.end_one(dispatcher)
    run.end_one(dispatcher, status=Status.FAILED)
    run.driver.turn(dispatcher)
    run.train_a_group(dispatcher)
    assert run.facts() == run.facts(with_snapshot=False)


def test_an_evaluation_that_is_half_answered_goes_on(tmp_path: Path) -> None:
    evaluation = EvaluationConfig(every_steps=1, sampled=True, num_prompts=2, max_attempts=2)
    run = Snapshotted(tmp_path, evaluation=evaluation)
    dispatcher = run.driver.dispatcher()
    run.driver.turn(dispatcher)
    asked = [each.task for each in dispatcher.state.credits.all() if each.task.kind is Kind.EVALUATION]
    assert [task.pinned_version for task in asked] == [3, 3]
    run.driver.end(asked[0])
    run.driver.end(asked[1], status=Status.FAILED)
    dispatcher.run_once()
    run.leave(dispatcher)
    assert run.facts() == run.facts(with_snapshot=False)
    plain = SnapshotFile(run.path, "dispatcher").read()
    assert plain is not None
    # Those of versions 0 to 2 are over; of the newest one prompt is answered and one was asked again.
    over, open_ones = plain["evaluations"][:-1], plain["evaluations"][-1:]
    assert all(len(each) == 2 for each in over)
    assert [each[2] for each in open_ones] == [[[asked[0].group_id, 0]]]


def test_its_size_goes_with_what_is_open_and_not_with_the_age_of_the_run(tmp_path: Path) -> None:
    young = Snapshotted(tmp_path / "young", num_trained=2).path.stat().st_size
    old = Snapshotted(tmp_path / "old", num_trained=40).path.stat().st_size
    assert old - young < 38 * 100


def cut(data: bytes) -> bytes:
    return data[:-10]


def altered(data: bytes) -> bytes:
    return data.replace(b'"next_group_id":', b'"next_group_id":1')


def of_another_format(data: bytes) -> bytes:
    return data.replace(b'"format": 1', b'"format": 2')


def of_another_role(data: bytes) -> bytes:
    return data.replace(b'"dispatcher"', b'"trainer"')


def with_content(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """A snapshot that is whole, but says something else."""

    def changed(data: bytes) -> bytes:
        head, _, content = data.partition(b"\n")
        plain, first = json.loads(content), json.loads(head)
        change(plain)
        value = json.dumps(plain).encode()
        return json.dumps(first | {"sha256": hashlib.sha256(value).hexdigest()}).encode() + b"\n" + value

    return changed


def ahead(plain: dict[str, Any]) -> None:
    plain["positions"] = [[topic, number, 10**6] for topic, number, _ in plain["positions"]]


def with_another_head(plain: dict[str, Any]) -> None:
    plain["ledger"]["head"] = "00" * 32


def without_groups(plain: dict[str, Any]) -> None:
    del plain["groups"]


def with_a_forged_size(plain: dict[str, Any]) -> None:
    plain["ledger"]["closed_groups"]["blocks"] = list(range(10**6))


def with_other_topics(plain: dict[str, Any]) -> None:
    plain["positions"] = plain["positions"][1:]


def with_a_task_that_is_none(plain: dict[str, Any]) -> None:
    plain["open_tasks"] = [["AAAA", "worker-1", 0, [0]]]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"\n\n",
        lambda _: b"[" * 100_000,
        lambda _: b"\xff\xfe",
        cut,
        altered,
        of_another_format,
        of_another_role,
        *map(
            with_content,
            [
                ahead,
                with_another_head,
                without_groups,
                with_a_forged_size,
                with_other_topics,
                with_a_task_that_is_none,
            ],
        ),
    ],
)
def test_a_snapshot_that_cannot_be_used_is_ignored_with_a_warning(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Snapshotted(tmp_path)
    run.path.write_bytes(damage(run.path.read_bytes()))
    dispatcher = run.driver.dispatcher()
    assert [record.getMessage() for record in caplog.records if "snapshot ignored" in record.getMessage()]
    assert dispatcher.state.groups.next_group_id == run.next_group_id


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_snapshot_that_others_may_write_is_ignored(mode: int, tmp_path: Path) -> None:
    run = Snapshotted(tmp_path)
    run.path.chmod(mode)
    assert SnapshotFile(run.path, "dispatcher").read() is None


def test_a_link_or_a_directory_in_its_place_is_ignored(tmp_path: Path) -> None:
    run = Snapshotted(tmp_path)
    elsewhere = run.path.rename(tmp_path / "elsewhere")
    run.path.symlink_to(elsewhere)
    assert SnapshotFile(run.path, "dispatcher").read() is None
    assert SnapshotFile(tmp_path, "dispatcher").read() is None


def test_a_snapshot_of_another_run_is_ignored(tmp_path: Path) -> None:
    other = Snapshotted(tmp_path / "other", num_trained=5)
    run = Snapshotted(tmp_path / "this")
    run.path.write_bytes(other.path.read_bytes())
    assert run.driver.dispatcher().state.ledger.version == 3


def test_a_snapshot_is_ignored_where_settings_changed(tmp_path: Path) -> None:
    run = Snapshotted(tmp_path)
    settings = replace(run.driver.settings, run_config=RunConfig(num_steps=100, seed=1))
    run.broker.num_read.clear()
    run.driver.settings = settings
    run.driver.dispatcher()
    assert run.broker.num_read["samples"] > 1


def test_a_snapshot_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    run = Snapshotted(tmp_path)
    assert "snapshot not written" in caplog.text
    assert run.driver.dispatcher().state.ledger.version == 3


def test_what_is_not_acknowledged_is_in_no_snapshot(tmp_path: Path) -> None:
    run = Snapshotted(tmp_path)
    dispatcher = run.driver.dispatcher()
    writer, before = dispatcher._snapshots, run.path.read_bytes()
    dispatcher._sender._on_their_way[next(iter(dispatcher._sender._on_their_way))].append(_OnItsWay())  # type: ignore[arg-type]
    writer.write_if_due(0.0)
    assert run.path.read_bytes() == before


class _OnItsWay:
    def done(self) -> bool:
        return False


def test_an_overtaken_dispatcher_writes_none(tmp_path: Path) -> None:
    run = Snapshotted(tmp_path)
    overtaken = run.driver.dispatcher()
    run.driver.dispatcher()
    before = run.path.read_bytes()
    overtaken._snapshots.write_if_due(0.0)
    overtaken._snapshots.write_last(0.0)
    assert run.path.read_bytes() == before


def test_a_resent_task_of_a_group_that_is_closed_is_not_waited_for(tmp_path: Path) -> None:
    run = Snapshotted(tmp_path)
    again = next(task for task in run.driver.tasks() if task.group_id == 0)
    run.driver.producer.send(run.driver.topics.tasks, 0, encode(again))
    run.driver.producer.flush(1.0)
    assert run.facts() == run.facts(with_snapshot=False)
    assert again.task_id not in run.facts()["open_tasks"]


def test_a_letter_about_a_place_that_does_not_exist_stops_no_snapshot(tmp_path: Path) -> None:
    run = Snapshotted(tmp_path)
    run.path.unlink()
    topics = run.driver.topics
    letter = DeadLetter(
        topic=topics.evaluations, partition=-(2**63), offset=0, reason="x", error_class="x", owner="x"
    )
    run.driver.producer.send(topics.dead_letters, 0, encode(letter))
    run.driver.producer.flush(1.0)
    run.leave(run.driver.dispatcher())
    assert run.path.exists()


def test_without_a_snapshot_no_task_is_opened_that_ended_in_a_group_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Snapshotted(tmp_path)
    opened: list[int] = []
    issue = CreditLedger.issue

    def noted(credits_: CreditLedger, open_task: OpenTask) -> None:
        if open_task.task.kind is Kind.TRAINING:
            opened.append(open_task.task.group_id)
        issue(credits_, open_task)

    monkeypatch.setattr(CreditLedger, "issue", noted)
    run.path.unlink()
    state = run.driver.dispatcher().state
    assert len(state.ledger.closed_groups)
    assert opened
    assert not set(opened) & set(state.ledger.closed_groups)
