"""A start without a snapshot: what is not opened again, what is, and what nobody may steer by forged records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from support.builders import a_header, groups_config
from support.dispatcher_driver import DispatcherDriver, num_partitions
from support.rebuilt_state import facts_of_state, rebuilt_state

from producers.dispatcher.ended_attempts import EndedAttempts
from rollog.kernel.broker.ports import TopicPartition
from rollog.settings.generation import DispatchConfig
from schemas import ClosedGroup, Disposition, RunClosed, Status
from schemas.codec import encode
from trainer.buffer.verdicts import verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    from producers.dispatcher.dispatcher import Dispatcher
    from schemas import RolloutTask


class OldRun:
    """A run whose dispatcher keeps a snapshot when it leaves; tasks and samples of group 0 are at hand."""

    def __init__(self, directory: Path, **sections: Any) -> None:
        self.driver = DispatcherDriver(**sections)
        self.driver.settings = replace(
            self.driver.settings,
            snapshot=directory / "dispatcher-snapshot.json",
            snapshot_every_seconds=float("inf"),
        )
        self.driver.publish_ledger()
        self.driver.beat(capacity=12)
        self.dispatcher = self.driver.dispatcher()
        self.driver.turn(self.dispatcher)

    def tasks_of(self, group: int) -> list[RolloutTask]:
        """Those that are open, by replica."""
        tasks = [open_task.task for open_task in self.dispatcher.state.credits.all()]
        return sorted((task for task in tasks if task.group_id == group), key=lambda task: task.replica)

    def end(
        self, task: RolloutTask, replica: int | None = None, **changes: Any
    ) -> tuple[RolloutTask, int, int]:
        """End one replica of a task; returns what `judge` takes."""
        number = task.replica if replica is None else replica
        ended = replace(task, replica=number)
        return ended, number, self.driver.end(ended, **changes)

    def judge(
        self,
        *ended: tuple[RolloutTask, int, int],
        outcome: Disposition = Disposition.TRAINED,
        closes: bool = True,
    ) -> None:
        """One ledger record over samples of one group, whose marks pass all of them."""
        group = ended[0][0].group_id
        marks = list(self.driver.ledger.state.low_water_marks)
        verdicts = []
        for task, replica, offset in ended:
            header = a_header(group, replica, offset=offset, partition=task.sample_partition)
            verdicts.append(verdict_of(header, outcome, version=0))
            marks[task.sample_partition] = max(marks[task.sample_partition], offset + 1)
        closed = [ClosedGroup(group_id=group, outcome=outcome)] if closes else []
        record = self.driver.ledger.step if outcome is Disposition.TRAINED else self.driver.ledger.verdicts
        record(verdicts, closed, marks=marks)
        self.driver.publish_ledger()
        self.driver.turn(self.dispatcher)

    def leave(self) -> None:
        self.dispatcher._snapshots.write_last(0.0)
        self.dispatcher.close()

    def facts(self, *, with_snapshot: bool) -> dict[str, Any]:
        settings = self.driver.settings
        return facts_of_state(
            rebuilt_state(self.driver.broker, settings if with_snapshot else replace(settings, snapshot=None))
        )


def assert_nothing_is_lost(run: OldRun) -> dict[str, Any]:
    """The state without a snapshot is that with it; returns it."""
    run.leave()
    facts = run.facts(with_snapshot=False)
    assert facts == run.facts(with_snapshot=True)
    return facts


def test_a_task_that_runs_on_in_a_closed_group_is_open_and_no_other_of_it(tmp_path: Path) -> None:
    run = OldRun(tmp_path, groups=groups_config(redundant_replicas=1))
    first, second, third = run.tasks_of(0)
    run.judge(run.end(first), run.end(second))

    open_tasks = assert_nothing_is_lost(run)["open_tasks"]

    assert third.task_id in open_tasks
    assert not {first.task_id, second.task_id} & set(open_tasks)


def test_of_a_task_with_several_replicas_the_ended_ones_stay_ended(tmp_path: Path) -> None:
    run = OldRun(
        tmp_path,
        groups=groups_config(redundant_replicas=1),
        dispatch=DispatchConfig(replicate=False, prefetch_tasks=0, lease_seconds=3.0),
    )
    (task,) = run.tasks_of(0)
    run.judge(run.end(task, 0), run.end(task, 1))

    open_tasks = assert_nothing_is_lost(run)["open_tasks"]

    assert open_tasks[task.task_id][3] == {2}


def test_a_judged_sample_of_an_open_group_is_folded_again(tmp_path: Path) -> None:
    run = OldRun(tmp_path)
    first, second = run.tasks_of(0)
    failed = run.end(first, status=Status.FAILED)
    run.driver.turn(run.dispatcher)
    run.judge(failed, outcome=Disposition.FAILED, closes=False)

    open_tasks = assert_nothing_is_lost(run)["open_tasks"]

    assert first.task_id not in open_tasks
    assert second.task_id in open_tasks


def test_where_every_group_is_closed_the_next_one_has_a_number_of_its_own(tmp_path: Path) -> None:
    run = OldRun(tmp_path)
    groups = sorted({open_task.task.group_id for open_task in run.dispatcher.state.credits.all()})
    run.driver.beat(capacity=0)  # no other group is issued
    for group in groups:
        first, second = run.tasks_of(group)
        ended = run.end(first), run.end(second)
        run.judge(*ended)

    facts = assert_nothing_is_lost(run)

    assert facts["next_group"] == groups[-1] + 1
    assert not facts["open_tasks"]


def test_a_sample_of_a_closed_group_that_names_a_task_of_an_open_one_ends_nothing(tmp_path: Path) -> None:
    run = OldRun(tmp_path)
    first, second = run.tasks_of(0)
    ended = run.end(first), run.end(second)
    other = run.tasks_of(1)[0]
    run.judge(*ended)
    forged = run.end(replace(first, task_id=other.task_id, replica=other.replica))
    run.driver.turn(run.dispatcher)
    run.judge(forged, outcome=Disposition.REDUNDANT, closes=False)

    assert other.task_id in assert_nothing_is_lost(run)["open_tasks"]


def test_where_samples_were_pruned_no_old_task_is_opened(tmp_path: Path) -> None:
    run = OldRun(tmp_path)
    first, second = run.tasks_of(0)
    run.judge(run.end(first), run.end(second))
    marks = run.driver.ledger.state.low_water_marks[:num_partitions]
    with run.driver.broker.admin() as admin:
        admin.delete_records(
            {TopicPartition(run.driver.topics.samples, number): mark for number, mark in enumerate(marks)}
        )

    open_tasks = assert_nothing_is_lost(run)["open_tasks"]

    assert not {first.task_id, second.task_id} & set(open_tasks)
    assert {task.task_id for task in run.tasks_of(1)} <= set(open_tasks)


def close_early(dispatcher: Dispatcher, driver: DispatcherDriver) -> None:
    """Somebody says that the run is closed while it goes on; then the dispatcher dies, and the trainer closes it."""
    driver.producer.send(driver.topics.control, 0, encode(RunClosed(epoch=1)))
    driver.producer.flush(1.0)
    driver.turn(dispatcher)
    dispatcher.close()
    driver.ledger.close()
    driver.publish_ledger()


def test_a_run_that_was_called_closed_too_early_is_closed_by_the_next_dispatcher(tmp_path: Path) -> None:
    run = OldRun(tmp_path)
    close_early(run.dispatcher, run.driver)

    with run.driver.dispatcher() as successor:
        successor.run(_Never())  # type: ignore[arg-type]

    closed = [record for record in run.driver.control() if isinstance(record, RunClosed)]
    assert [record.epoch for record in closed] == [1, 2]


class _Never:
    """An event that is never set; nobody waits for it."""

    def is_set(self) -> bool:
        return False

    def wait(self, _seconds: float) -> bool:
        return False


def test_numbers_that_no_task_can_have_take_no_memory() -> None:
    ended = EndedAttempts(2, newest_epoch=3, num_tasks=10)
    for forged in ("4.1", "0.1", "3.11", f"3.{10**17}", "3.01", "three.1"):
        ended.add(a_header(offset=0, task_id=forged))
    assert not ended._by_epoch
    ended.add(a_header(offset=0, task_id="3.10"))
    assert ended._by_epoch
