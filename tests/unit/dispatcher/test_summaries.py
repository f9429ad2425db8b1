"""A dispatcher goes by the headers of samples: what they say, what they do not say, and what becomes of wrong ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.builders import a_header, a_sample, a_segment, digest_of
from support.dispatcher_driver import DispatcherDriver, num_partitions, started_driver

from rollog.kernel.broker.ports import Record
from rollog.rules.headers import SampleLimits
from rollog.rules.reading import read_sample, read_summary
from schemas import CancelReason, Disposition, FinishReason, IssueReason, Sample, Segment, Status
from schemas.codec import encode
from schemas.headers import headers_of
from schemas.sample_summary import SampleSummary, summary_in
from trainer.buffer.verdicts import verdict_of

if TYPE_CHECKING:
    from producers.dispatcher.dispatcher import Dispatcher
    from schemas import RolloutTask

limits = SampleLimits(num_partitions=num_partitions, num_replicas=4, temperature=1.0, has_late_rewards=True)


def stored(sample: Sample, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "topic": "samples",
        "partition": sample.group_id % num_partitions,
        "offset": 7,
        "value": encode(sample),
        "headers": headers_of(sample),
    }
    return Record(**values | changes)


def with_summary(sample: Sample, **changes: Any) -> list[tuple[str, bytes]]:
    """The headers of a sample, with some keys of the summary as given; None takes one away."""
    named = dict(headers_of(sample))
    facts = json.loads(named["summary"]) | changes
    named["summary"] = json.dumps({key: value for key, value in facts.items() if value is not None}).encode()
    return list(named.items())


@pytest.mark.parametrize(
    "sample",
    [
        a_sample(3, 1),
        a_sample(3, 1, seed=99, attempt=2, finish_reason=FinishReason.LENGTH),
        a_sample(
            2,
            segments=(
                Segment(version=4, weights_digest=digest_of(4), start=0, end=1),
                Segment(version=5, weights_digest=digest_of(5), start=1, end=3),
            ),
        ),
        a_sample(0, reward=None, awaits_reward=True),
        a_sample(1, status=Status.FAILED, reward=None, segments=(), error_class="RewardError"),
        a_sample(1, status=Status.CANCELLED, reward=None, cancel_reason=CancelReason.STALE.value),
    ],
)
def test_headers_say_all_that_decides_what_is_issued(sample: Sample) -> None:
    by_headers, origin = read_summary(stored(sample, value=b"not read"), limits)
    by_record, _ = read_sample(stored(sample), limits)
    assert isinstance(origin, SampleSummary)
    unread: dict[str, Any] = {"digest": b"", "num_prompt_tokens": 0, "num_turns": 0, "wasted_tokens": 0}
    expected = replace(by_record, **unread, segments=by_headers.segments)
    assert by_headers == expected
    pairs = [[(each.version, each.weights_digest) for each in of.segments] for of in (by_headers, by_record)]
    assert pairs[0] == pairs[1]


@pytest.mark.parametrize(
    "change",
    [
        {"worker": 5},
        {"worker": None},
        {"seed": -1},
        {"seed": True},
        {"seed": 1 << 64},
        {"reward": "1"},
        {"reward": None},
        {"reward": float("nan")},
        {"reward": 10**400},
        {"tokens": 1.5},
        {"cut": 1},
        {"versions": None},
        {"versions": []},
        {"versions": 4},
        {"versions": [[0]]},
        {"versions": [[0, 1]]},
        {"versions": [[0, "a"]] * 2000},
        {"waits": "yes"},
        {"cancel": 3},
    ],
)
def test_what_headers_do_not_say_plainly_is_read_from_the_record(change: dict[str, Any]) -> None:
    sample = a_sample(3, 1)
    _, origin = read_summary(stored(sample, headers=with_summary(sample, **change)), limits)
    assert isinstance(origin, Sample)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("summary", b"[" * 60_000),
        ("summary", b"[]"),
        ("summary", b"{"),
        ("summary", b"\xff"),
        ("summary", b" " * 70_000 + b"{}"),
        ("kind", b"evaluation"),
        ("status", b"done"),
        ("group_id", b"-1"),
        ("group_id", b"9" * 5000),
        ("group_id", b"1"),
        ("replica", b"4"),
        ("task_id", b"\xff"),
    ],
)
def test_headers_that_cannot_be_are_not_gone_by(name: str, value: bytes) -> None:
    sample = a_sample(4, 1)
    headers = list((dict(headers_of(sample)) | {name: value}).items())
    _, origin = read_summary(stored(sample, headers=headers), limits)
    assert isinstance(origin, Sample)


def test_records_without_headers_are_read() -> None:
    assert summary_in([]) is None
    _, origin = read_summary(stored(a_sample(), headers=()), limits)
    assert isinstance(origin, Sample)


def test_a_reward_that_is_not_finite_does_not_stand_in_headers() -> None:
    (summary,) = [value for name, value in headers_of(a_sample(reward=float("inf"))) if name == "summary"]
    assert "reward" not in json.loads(summary)


def started() -> tuple[DispatcherDriver, Dispatcher, RolloutTask]:
    driver = started_driver()
    dispatcher = driver.dispatcher()
    driver.turn(dispatcher)
    return driver, dispatcher, driver.tasks()[0]


def sample_of(task: RolloutTask) -> Sample:
    return a_sample(
        task.group_id,
        task.replica,
        task_id=task.task_id,
        grant_id=task.grant_id,
        seed=task.seed,
        segments=(a_segment(0),),
        reward=1.0,
    )


def attempts(driver: DispatcherDriver, group: int, replica: int) -> list[tuple[int, IssueReason]]:
    of = [task for task in driver.tasks() if (task.group_id, task.replica) == (group, replica)]
    return [(task.attempt, task.issue_reason) for task in of]


def test_a_record_that_cannot_be_read_counts_by_its_headers_until_its_verdict() -> None:
    driver, dispatcher, task = started()
    headers = headers_of(sample_of(task))
    sent = driver.producer.send(driver.topics.samples, task.sample_partition, b"garbage", headers=headers)
    driver.turn(dispatcher)
    assert dispatcher.state.credits.get(task.task_id) is None
    assert attempts(driver, task.group_id, task.replica) == [(0, IssueReason.FIRST)]
    dead = a_header(
        task.group_id,
        task.replica,
        partition=task.sample_partition,
        offset=sent.offset(1.0),
        task_id=task.task_id,
    )
    driver.ledger.verdicts([verdict_of(dead, Disposition.DEAD, version=0)])
    driver.publish_ledger()
    driver.turn(dispatcher)
    assert attempts(driver, task.group_id, task.replica) == [(0, IssueReason.FIRST), (1, IssueReason.DEAD)]


@pytest.mark.parametrize("verdict_group", [-1, 1])
def test_headers_that_name_another_group_than_the_record_hold_nothing_up(verdict_group: int) -> None:
    """The trainer judges the record as of another group, or of none: the one in the headers lacks a sample again."""
    driver, dispatcher, task = started()
    other = sample_of(task)
    value = encode(replace(other, group_id=1, sample_id="g1.r0.a0"))
    sent = driver.producer.send(
        driver.topics.samples, task.sample_partition, value, headers=headers_of(other)
    )
    driver.turn(dispatcher)
    assert attempts(driver, task.group_id, task.replica) == [(0, IssueReason.FIRST)]
    header = a_header(max(verdict_group, 0), 0, partition=task.sample_partition, offset=sent.offset(1.0))
    verdict = replace(verdict_of(header, Disposition.DEAD, version=0), group_id=verdict_group)
    driver.ledger.verdicts([verdict])
    driver.publish_ledger()
    driver.turn(dispatcher)
    assert len(attempts(driver, task.group_id, task.replica)) == 2


def test_a_worker_whose_record_differs_from_its_headers_still_ends_its_task() -> None:
    """Headers say failed, the record has a finished rollout: another attempt is issued, and nothing waits for ever."""
    driver, dispatcher, task = started()
    finished = sample_of(task)
    failed = replace(finished, status=Status.FAILED, reward=None)
    driver.producer.send(
        driver.topics.samples, task.sample_partition, encode(finished), headers=headers_of(failed)
    )
    driver.turn(dispatcher)
    assert attempts(driver, task.group_id, task.replica)[1:] == [(1, IssueReason.FAILED)]
