"""What was ordered, and by whom it was to be made: the origin of everything trained, and the end of every task.

A sample has an origin if `tasks` holds the order that it names, the order is one that a dispatcher of the run can have
given, and sample, order and grant say the same about group, replica, attempt, seed and worker. Of several records with
one task_id any will do: which of them a worker read cannot be told here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.audit.findings import Place
from consumers.audit.issues import has_seed_of_run
from consumers.audit.order_index import Order, OrderIndex
from schemas import DispatcherEpoch, Grant, RunClosed, Stopped, sample_id
from schemas.codec import SchemaError, decode

if TYPE_CHECKING:
    from collections.abc import Collection

    from consumers.audit.ledger_end import LedgerEnd
    from consumers.audit.ledger_index import LedgerIndex
    from rollog.kernel.broker.ports import Record
    from schemas import RolloutTask, Sample

_seed_stride = 0x9E3779B1
"""What the seed of each further rollout of one task is larger by."""


@dataclass(slots=True)
class Orders:
    """Takes in the records of `control`, then tasks, then samples."""

    ledger: LedgerIndex
    end: LedgerEnd
    tasks_cut: bool
    control_cut: bool
    num_unreadable: int = 0
    """Records of `control` that cannot be decoded."""
    _orders: OrderIndex = field(default_factory=OrderIndex)
    _groups: set[int] | None = None
    """Groups of which anything was ordered; None until that is asked, which a clean run never does."""
    _workers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _ended: set[str] = field(default_factory=set)
    _is_stopped: bool = False
    _newest_epoch: int = 0
    """Of dispatchers, as `control` counts them: each is one more than the one before."""

    def task(self, task: RolloutTask, place: Place, *, is_void: bool) -> None:
        """A task of training; `is_void` as in `Order`."""
        order = Order(
            place=place,
            grant_id=task.grant_id,
            group_id=task.group_id,
            replica=task.replica,
            num_replicas=task.num_replicas,
            attempt=task.attempt,
            seed=task.seed,
            ledger_position=task.ledger_position,
            sample_partition=task.sample_partition,
            is_ours=self._is_ours(task),
            is_void=is_void,
        )
        self._orders.add(task.task_id, order)

    def control(self, record: Record) -> None:
        """One record of `control`: who holds which grant, and whether the run has stopped."""
        try:
            decoded = decode(record.value or b"")
        except SchemaError:
            self.num_unreadable += 1
            return
        match decoded:
            case DispatcherEpoch(epoch=epoch) if epoch == self._newest_epoch + 1:
                self._newest_epoch = epoch
            case Grant(grant_id=grant_id, worker_id=worker_id, epoch=epoch) if self.may_be_epoch(epoch):
                self._workers[grant_id].add(worker_id)
            case Stopped():
                self._is_stopped = True
            case RunClosed() if self.ledger.close is None:
                self.end.says_closed(Place(record.topic, record.partition, record.offset))

    def may_be_epoch(self, epoch: int) -> bool:
        """Whether a dispatcher of this epoch took the run over; anybody may be able to write another number."""
        # Of a run that goes on the next one may come between the readings of two topics.
        newest = self._newest_epoch + (self.ledger.close is None)
        return self.control_cut or epoch <= newest

    def ended(self, name: str) -> None:
        """A task has a record in `samples`, whatever that says: by its id or, of one that was altered, the sample's.

        Asked for only of a run that is over, so of others nothing is kept.
        """
        if self._is_over and not self._orders.end(name):
            self._ended.add(name)

    def trained(self, sample: Sample, place: Place) -> None:
        """A trained sample was ordered, and made by the one who was to make it."""
        check = self.ledger.checks.origin
        check.num_checked += 1
        orders = self._orders.of(sample.task_id)
        if not orders:
            if self.tasks_cut:
                check.num_unchecked += 1
                return
            group = "" if self._is_issued(sample.group_id) else f": group {sample.group_id} was never issued"
            check.find(
                f"trained, though no task ordered it{group}",
                place=place,
                record_id=sample.sample_id,
                expected=f"task {sample.task_id[:80]} on tasks",
                found="none",
            )
            return
        faults = [self._fault(sample, order) for order in orders]
        if None in faults:
            check.num_unchecked += self.control_cut and not self._workers.get(sample.grant_id)
            return
        expected, found = next(fault for fault in faults if fault is not None)
        check.find(
            "trained, though it is not what its task ordered",
            place=place,
            record_id=sample.sample_id,
            expected=f"{expected}, by task {sample.task_id[:80]} at {orders[0].place}",
            found=found,
        )

    def conclude(self, cut_partitions: Collection[int]) -> None:
        """Tasks that point beyond the ledger, and those of a run that stopped and closed which never ended.

        `cut_partitions` are those of `samples` whose beginning is gone.
        """
        check = self.ledger.checks.end
        for task_id, orders, has_ended in self._orders.items():
            ours = [order for order in orders if order.is_ours]
            if not ours:
                continue
            if all(order.ledger_position > self.end.position for order in orders):
                self.end.task_points_beyond(task_id, ours[0].place, ours[0].ledger_position)
            if not self._must_have_ended(orders) or has_ended or self._has_ended(ours):
                continue
            if cut_partitions:
                check.num_unchecked += 1
            else:
                check.find(
                    "the task never ended, though the run has stopped: its record is missing",
                    place=ours[0].place,
                    record_id=f"task {task_id}",
                    expected="a record of samples",
                    found="none",
                )

    def _must_have_ended(self, orders: list[Order]) -> bool:
        """A dispatcher says Stopped when each of its tasks has its records; behind its fence others' are void."""
        return self._is_over and not any(order.is_void for order in orders)

    @property
    def _is_over(self) -> bool:
        return self._is_stopped and self.ledger.close is not None

    def _is_issued(self, group_id: int) -> bool:
        """Whether a dispatcher of the run ordered anything of this group."""
        if self._groups is None:
            self._groups = {
                order.group_id for _, orders, _ in self._orders.items() for order in orders if order.is_ours
            }
        return group_id in self._groups

    def _has_ended(self, orders: list[Order]) -> bool:
        """Whether a sample ended it that no task's name tells of."""
        names = (
            sample_id(order.group_id, replica, order.attempt)
            for order in orders
            for replica in range(order.replica, order.replica + order.num_replicas)
        )
        return any(name in self._ended for name in names)

    def _is_ours(self, task: RolloutTask) -> bool:
        """Whether identity and seed are those that a dispatcher of the run gives."""
        epoch, _, sequence = task.task_id.partition(".")
        is_named = epoch == str(task.epoch) and sequence.isascii() and sequence.isdecimal()
        return is_named and has_seed_of_run(task, self.ledger.config.seed)

    def _fault(self, sample: Sample, order: Order) -> tuple[str, str] | None:
        """What the order or its grant says otherwise than the sample, and what that says."""
        index = sample.replica - order.replica
        seed = (order.seed + index * _seed_stride) % (1 << 31)
        workers = self._workers.get(order.grant_id, set())
        last = order.replica + order.num_replicas - 1
        replicas = (
            f"replica {order.replica}" if last == order.replica else f"replicas {order.replica} to {last}"
        )
        rollout = f"group {order.group_id}, {replicas}, attempt {order.attempt}"
        made = f"group {sample.group_id}, replica {sample.replica}, attempt {sample.attempt}"
        is_same = (order.group_id, order.attempt) == (sample.group_id, sample.attempt)
        named = f"worker {sample.worker_id[:80]}"
        faults = {
            ("a task of this run", "id and seed of the task do not fit run, group, replica and attempt"): (
                not order.is_ours
            ),
            (rollout, made): not (is_same and 0 <= index < order.num_replicas),
            (f"seed {seed}", f"seed {sample.seed}"): sample.seed != seed,
            (f"grant {order.grant_id}", f"grant {sample.grant_id[:80]}"): sample.grant_id != order.grant_id,
            (f"a grant {order.grant_id} on control", "none"): not workers and not self.control_cut,
            (f"worker {', '.join(sorted(workers))}", named): (
                bool(workers) and sample.worker_id not in workers
            ),
        }
        return next((told for told, is_so in faults.items() if is_so), None)
