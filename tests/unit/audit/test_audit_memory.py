"""What an audit holds of a long run: few bytes, nothing of what it has checked, and no less than was written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consumers.audit.batches import TrainedBatches
from consumers.audit.chain import Chain
from consumers.audit.findings import Checks, Place
from consumers.audit.judged import Judged, JudgedRecords, TrainedReplicas
from consumers.audit.ledger_index import LedgerIndex
from consumers.audit.order_index import Order, OrderIndex
from consumers.audit.step_facts import facts_of
from schemas import Disposition, MicroBatch, Sample, Step
from schemas.codec import decode_as

if TYPE_CHECKING:
    from support.audited_run import AuditedRun

usual = Judged(
    entry=3,
    sample_id="g12.r1.a2",
    digest=bytes(range(16)),
    group_id=12,
    replica=1,
    disposition=Disposition.STALE,
    lag=2,
    reason="lag",
)
an_order = Order(
    place=Place("tasks", 1, 5),
    grant_id="1.2",
    group_id=12,
    replica=1,
    num_replicas=1,
    attempt=0,
    seed=7,
    ledger_position=9,
    sample_partition=0,
    is_ours=True,
    is_void=False,
)


@pytest.mark.parametrize(
    "judged",
    [
        usual,
        replace(usual, lag=None, reason=""),
        replace(usual, lag=-1, group_id=-1, replica=-1, sample_id="g-1.r-1.a0"),
        replace(usual, sample_id="g12.r1.a02"),
        replace(usual, sample_id="g13.r1.a2"),
        replace(usual, sample_id=""),
        replace(usual, digest=b"short"),
        replace(usual, group_id=1 << 70, sample_id=f"g{1 << 70}.r1.a2"),
        replace(usual, replica=1 << 40, sample_id=f"g12.r{1 << 40}.a2"),
    ],
)
def test_a_disposition_comes_back_as_it_was_whatever_its_form(judged: Judged) -> None:
    records = JudgedRecords()
    records[1] = usual
    records[5] = judged
    assert records[5] == records.get(5) == judged
    assert list(records.items()) == [(1, usual), (5, judged)]
    assert records.pop(5) == judged
    assert (records.get(5), records.pop(5), len(records)) == (None, None, 1)


def test_of_a_replica_the_entry_stays_that_trained_it_first() -> None:
    trained = TrainedReplicas()
    assert not trained
    for replica, entry in ((0, 4), (1, 4), (2, 5), (0, 5), (0, 4)):
        trained.add(7, replica, entry)
    assert [trained.by(7, replica) for replica in (0, 1, 2, 3)] == [4, 4, 5, None]
    assert trained.by(8, 0) is None


@pytest.mark.parametrize(
    "task_id", ["1.1", "12.345678", "1.01", "x", "1", "1.", ".1", "0.0", "1.99999999999999"]
)
def test_an_order_is_found_by_the_name_of_its_task_whatever_its_form(task_id: str) -> None:
    index = OrderIndex()
    index.add(task_id, an_order)
    index.add(task_id, an_order)
    index.add("1.2", replace(an_order, is_ours=False, is_void=True))
    assert index.of(task_id) == [an_order]
    assert index.of("1.2") == [replace(an_order, is_ours=False, is_void=True)]
    assert [found for found, _, _ in index.items()] == [task_id, "1.2"]


def test_orders_of_one_task_that_differ_are_all_there() -> None:
    index = OrderIndex()
    others = [an_order, replace(an_order, seed=8), replace(an_order, group_id=1 << 70)]
    for order in others:
        index.add("1.1", order)
    assert index.of("1.1") == others


def test_a_task_that_has_ended_is_told_and_its_orders_stay() -> None:
    index = OrderIndex()
    index.add("1.1", an_order)
    index.add("1.2", an_order)
    index.add("odd", an_order)
    assert index.end("1.1")
    assert not index.end("1.3")
    assert not index.end("odd"), "a sample may have that name"
    assert [(task, has_ended) for task, _, has_ended in index.items()] == [
        ("1.1", True),
        ("1.2", False),
        ("odd", True),
    ]
    assert index.of("1.1") == [an_order]


def test_a_step_is_forgotten_as_soon_as_all_its_samples_are_read(run: AuditedRun) -> None:
    ledger = LedgerIndex(run.topics.samples, 2, Checks())
    chain = Chain(ledger.checks.chain)
    for written in run.steps:
        link = chain.add(written)
        assert link is not None
        ledger.add(link)
    batches = TrainedBatches(ledger)
    num_open = []
    for record in run.ledger:
        for verdict in record.verdicts:
            if verdict.disposition is Disposition.TRAINED:
                stored = run.sample(verdict)
                place = Place(stored.topic, stored.partition, stored.offset)
                batches.add(decode_as(Sample, stored.value or b""), record.version, place)
                num_open.append(batches.num_open)
    assert max(num_open) == 1
    assert batches.num_open == 0
    assert list(batches.conclude()) == []
    assert ledger.checks.steps.num_checked == sum(isinstance(record.body, Step) for record in run.ledger)


@pytest.mark.parametrize(
    "positions", [((0, 1), (2, 3)), ((0, 1, 2, 3), (3, 2, 1, 0)), ((0, 0, 1),), ((0, 2),), ((-1, 0),), ((),)]
)
def test_of_a_plan_is_known_how_often_it_names_each_position(
    run: AuditedRun, positions: tuple[tuple[int, ...], ...]
) -> None:
    body = next(record.body for record in run.ledger if isinstance(record.body, Step))
    plan = tuple(MicroBatch(minibatch=0, rank=rank, positions=part) for rank, part in enumerate(positions))
    facts = facts_of(replace(body, plan=plan)).plan
    named = [position for part in positions for position in part]
    assert dict(facts.counts) == {position: named.count(position) for position in set(named)}
    assert facts.ranks == set(range(len(positions)))
