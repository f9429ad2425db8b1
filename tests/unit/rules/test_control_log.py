"""Which records of `control` count, and which no dispatcher can have written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rollog.rules.control_log import ControlLog
from schemas import DatasetEnd, DispatcherEpoch, Grant, Revoke, RunClosed, Stopped

if TYPE_CHECKING:
    from rollog.rules.reading import ControlRecord


def an_epoch(epoch: int) -> DispatcherEpoch:
    return DispatcherEpoch(epoch=epoch, dispatcher_id="d")


def a_grant(epoch: int = 2, **changes: object) -> Grant:
    values = {"grant_id": "2.1", "worker_id": "w", "partition": 1, "start_offset": 3} | changes
    return Grant(epoch=epoch, **values)  # type: ignore[arg-type]


def a_log() -> ControlLog:
    log = ControlLog(num_partitions=2)
    assert log.add(an_epoch(1))
    assert log.add(an_epoch(2))
    assert log.add(a_grant())
    return log


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (an_epoch(2**63 - 1), "is 3"),
        (an_epoch(2), "is 3"),
        (an_epoch(4), "is 3"),
        (an_epoch(-1), "is 3"),
        (a_grant(10**9, grant_id="9.1"), "epoch 1000000000"),
        (a_grant(0, grant_id="9.1"), "epoch 0"),
        (a_grant(grant_id="2.2", partition=2), "partition 2"),
        (a_grant(grant_id="2.2", partition=-1), "partition -1"),
        (a_grant(grant_id="2.2", start_offset=-1), "offset -1"),
        (a_grant(worker_id="thief"), "was given to w"),
        (a_grant(start_offset=4), "grant 2.1"),
        (Revoke(grant_id="2.1", epoch=3, worker_id="w", reason=""), "epoch 3"),
        (DatasetEnd(epoch=2, last_group_id=-2), "group -2"),
        (DatasetEnd(epoch=9, last_group_id=1), "epoch 9"),
        (Stopped(epoch=5), "epoch 5"),
        (RunClosed(epoch=5), "epoch 5"),
    ],
)
def test_what_cannot_be_is_named_and_changes_nothing(record: ControlRecord, said: str) -> None:
    log = a_log()
    assert said in (log.refused(record) or "")
    assert not log.add(record)
    assert (log.epoch, list(log.grants)) == (2, ["2.1"])
    assert log.add(an_epoch(3))


def test_an_overtaken_dispatchers_record_can_be_but_is_void() -> None:
    log = a_log()
    late = a_grant(1, grant_id="1.4")
    assert log.refused(late) is None
    assert not log.add(late)
    assert "1.4" not in log.grants


def test_a_live_grant_may_be_repeated_by_the_next_dispatcher() -> None:
    log = a_log()
    assert log.add(an_epoch(3))
    assert log.add(a_grant(3))


def test_that_a_run_is_closed_holds_under_every_later_epoch() -> None:
    log = a_log()
    assert log.add(RunClosed(epoch=1))
    assert not log.add(Stopped(epoch=1))
