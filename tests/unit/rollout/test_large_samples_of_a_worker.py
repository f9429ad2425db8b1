"""A worker puts the arrays of a large sample into the store before it sends the record that names them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from support.worker_thread import Stage, running

from rollog.kernel.payloads import PayloadStore
from schemas import Status
from schemas.claim_check import joined

if TYPE_CHECKING:
    from producers.rollout.settings import RolloutSettings


def settings(stage: Stage, **broker: Any) -> RolloutSettings:
    made = stage.settings()
    return replace(made, broker=made.broker.model_copy(update={"inline_sample_bytes": 0, **broker}))


def test_a_small_sample_stands_in_its_record(stage: Stage) -> None:
    with running(stage):
        stage.give_grant()
        stage.order(stage.task(0))
        sample = stage.sample()
    assert (sample.payload, sample.num_tokens > 0) == (None, True)
    assert PayloadStore(stage.store, stage.topics).names() == []


def test_a_large_sample_is_a_record_and_an_object(stage: Stage) -> None:
    with running(stage, settings=settings(stage)):
        stage.give_grant()
        stage.order(stage.task(0))
        record = stage.sample()
    assert record.payload is not None
    assert (len(record.token_ids), record.response_text) == (0, "")
    store = PayloadStore(stage.store, stage.topics)
    assert store.names() == [record.payload.sha256]
    sample = joined(record, store.fetch(record.payload))
    assert sample.num_tokens == record.num_tokens > 0
    assert sample.response_text != ""
    assert sample.reward == record.reward is not None


def test_a_sample_whose_object_would_be_too_large_fails_as_too_large(stage: Stage) -> None:
    with running(stage, settings=settings(stage, max_payload_bytes=10)):
        stage.give_grant()
        stage.order(stage.task(0))
        sample = stage.sample()
    assert (sample.status, sample.error_class) == (Status.FAILED, "too_large")
    assert "broker.max_payload_bytes = 10" in (sample.error_message or "")
    assert sample.wasted_tokens > 0
    assert PayloadStore(stage.store, stage.topics).names() == []


def test_while_the_store_is_away_a_finished_sample_waits_and_its_task_stays_open(stage: Stage) -> None:
    place = stage.store.directory
    assert place is not None
    with running(stage, settings=settings(stage)):
        stage.give_grant()
        stage.wait_until_serving(0)
        place.rename(place.with_name("elsewhere"))
        task = stage.task(0)
        stage.order(task)
        for _ in range(3):  # heartbeats go on
            stage.wait_for_status(
                lambda status: status.num_scoring == 1 and status.open_tasks == (task.task_id,), "generated"
            )
        assert stage.read(stage.topics.samples) == []
        place.with_name("elsewhere").rename(place)
        record = stage.sample()
    assert record.payload is not None
    assert PayloadStore(stage.store, stage.topics).names() == [record.payload.sha256]
