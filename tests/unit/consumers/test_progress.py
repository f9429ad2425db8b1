"""The progress of a run, from its topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consumers.progress import RunProgress
from rollog.broker.memory import MemoryBroker
from rollog.broker.topics import RunTopics, topic_specs
from rollog.config import BrokerConfig
from rollog.errors import LedgerError, TopicMismatch
from rollog.rules.ledger_state import no_hash, record_hash
from schemas import (
    Close,
    Disposition,
    FinishReason,
    Genesis,
    Kind,
    LedgerKind,
    LedgerRecord,
    Sample,
    Segment,
    Status,
    Step,
    StepTimings,
    Verdict,
    WorkerState,
    WorkerStatus,
    float32_array,
    int32_array,
    uint8_array,
)
from schemas.codec import encode

if TYPE_CHECKING:
    from rollog.broker.ports import Producer
    from schemas.records import Record

topics = RunTopics("rollog", "first")


class ARun:
    """Writes what the roles of a run would write."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        with self.broker.admin() as admin:
            admin.create_topics(topic_specs(topics, BrokerConfig(samples_partitions=2)))
        self._producer: Producer = self.broker.producer(client_id="roles")
        self._head, self._sequence = no_hash, 0

    def write(
        self, topic: str, record: Record | None, *, partition: int = 0, key: bytes | None = None
    ) -> None:
        self._producer.send(topic, partition, None if record is None else encode(record), key=key)
        self._producer.flush(10)

    def ledger(
        self,
        kind: LedgerKind,
        version: int,
        body: Genesis | Step | Close | None,
        verdicts: tuple[Verdict, ...] = (),
    ) -> None:
        record = LedgerRecord(
            kind=kind,
            sequence=self._sequence,
            version=version,
            alpha=1.0,
            previous_hash=self._head,
            low_water_marks=(0, 0),
            verdicts=verdicts,
            body=body,
        )
        self._head, self._sequence = record_hash(encode(record)), self._sequence + 1
        self.write(topics.steps, record)

    def genesis(self) -> None:
        body = Genesis(
            manifest_json="{}",
            weights_sha256="0" * 64,
            model_config_json="{}",
            versions={"torch": "2"},
            machine="x86_64",
            world_size=1,
            zero_stage=1,
            dtype="float32",
        )
        self.ledger(LedgerKind.GENESIS, 0, body)

    def step(self, version: int, *, reward: float, lags: dict[str, int]) -> None:
        body = Step(
            weights_sha256_before=f"{version - 1:064d}",
            weights_sha256=f"{version:064d}",
            alpha=1.0,
            revision=0,
            seed=0,
            plan=(),
            losses=(0.5,),
            gradient_norms=(1.0,),
            learning_rates=(0.1,),
            reward_mean=reward,
            num_groups=1,
            num_samples=2,
            num_tokens=20,
            lags=lags,
            timings=StepTimings(wait_seconds=0.25),
        )
        verdicts = tuple(
            a_verdict(offset, Disposition.TRAINED) for offset in range(2 * version - 2, 2 * version)
        )
        self.ledger(LedgerKind.STEP, version, body, verdicts)


def a_verdict(offset: int, disposition: Disposition, reason: str = "") -> Verdict:
    return Verdict(
        partition=0,
        offset=offset,
        sample_id=f"g{offset}.r0.a0",
        digest=bytes(16),
        group_id=offset,
        replica=0,
        disposition=disposition,
        reason=reason,
    )


def an_answer(group_id: int, reward: float, *, version: int = 0) -> Sample:
    return Sample(
        sample_id=f"e{group_id}",
        task_id=f"1.{group_id}",
        kind=Kind.EVALUATION,
        status=Status.FINISHED,
        epoch=1,
        grant_id="grant",
        worker_id="w",
        group_id=group_id,
        replica=0,
        attempt=0,
        prompt_id=str(group_id),
        segments=(Segment(version=version, weights_digest="0" * 16, start=0, end=1),),
        token_ids=int32_array([1]),
        behaviour_logprobs=float32_array([0.0]),
        loss_mask=uint8_array([1]),
        finish_reason=FinishReason.STOP,
        reward=reward,
        evaluation="greedy",
        pinned_version=version,
    )


def a_heartbeat(*, state: WorkerState = WorkerState.SERVING, num_tokens: int = 0) -> WorkerStatus:
    return WorkerStatus(
        worker_id="w", state=state, capacity=4, num_tokens=num_tokens, engine="vllm", open_tasks=("1.1",)
    )


def test_before_the_ledger_begins_there_is_no_version() -> None:
    with RunProgress(ARun().broker, topics) as progress:
        view = progress.poll()

    assert (view.version, view.is_closed, view.reward_mean, view.lag_max) == (-1, False, None, 0)


def test_steps_add_up() -> None:
    run = ARun()
    run.genesis()
    run.step(1, reward=0.25, lags={"0": 2})

    with RunProgress(run.broker, topics) as progress:
        assert progress.poll().version == 1
        run.step(2, reward=0.75, lags={"0": 1, "1": 1})
        run.ledger(LedgerKind.VERDICTS, 2, None, (a_verdict(4, Disposition.FILTERED, "no signal"),))
        view = progress.read_to_end(10)

    assert (view.version, view.alpha) == (2, 1.0)
    assert view.reward_history == (0.25, 0.75)
    assert (view.lags, view.lag_max) == ({0: 3, 1: 1}, 1)
    assert view.dispositions == {"filtered": 1, "trained": 4}
    assert view.reasons == {"filtered: no signal": 1}
    assert view.tokens_trained == 40
    assert [timings.wait_seconds for timings in view.step_timings] == [0.25, 0.25]
    assert view.versions == {"torch": "2"}


def test_samples_are_counted_up_to_the_close_of_the_ledger() -> None:
    run = ARun()
    run.genesis()
    for partition in (0, 0, 1):
        run.write(topics.samples, an_answer(0, 1.0), partition=partition)
    with RunProgress(run.broker, topics) as progress:
        assert progress.poll().samples_produced == 3

        run.ledger(LedgerKind.CLOSE, 0, Close(end_offsets=(2, 1), reason="done"))
        run.write(topics.samples, an_answer(1, 1.0))
        view = progress.read_to_end(10)

    assert (view.samples_produced, view.is_closed, view.close_reason) == (3, True, "done")
    assert len(view.ledger_head) == 64


def test_held_out_accuracy_is_known_per_evaluation_and_version() -> None:
    run = ARun()
    for group_id, reward in enumerate((1.0, 0.0, 1.0, 1.0)):
        run.write(topics.evaluations, an_answer(group_id, reward), partition=group_id % 2)
    run.write(topics.evaluations, an_answer(0, 1.0, version=3))

    with RunProgress(run.broker, topics) as progress:
        view = progress.read_to_end(10)

    assert view.accuracy("greedy", 0) == 0.75
    assert view.accuracy("sampled", 0) is None
    newest = view.newest_evaluation("greedy")
    assert newest is not None
    assert newest[0] == 3


def test_workers_come_and_go_and_their_tokens_stay() -> None:
    run = ARun()
    with RunProgress(run.broker, topics) as progress:
        run.write(topics.workers, a_heartbeat(num_tokens=100), key=b"w")
        view = progress.read_to_end(10)
        assert [worker.worker_id for worker in view.workers] == ["w"]
        assert (view.num_open_tasks, view.engines) == (1, ("vllm",))

        run.write(topics.workers, a_heartbeat(state=WorkerState.LEAVING, num_tokens=130), key=b"w")
        run.write(topics.workers, None, key=b"w")
        view = progress.read_to_end(10)

    assert view.workers == ()
    assert view.tokens_generated == 130


def test_a_broken_chain_is_not_shown_as_progress() -> None:
    run = ARun()
    run.genesis()
    run._head = bytes(31) + b"x"
    run.step(1, reward=0.5, lags={"0": 1})

    with RunProgress(run.broker, topics) as progress, pytest.raises(LedgerError):
        progress.poll()


def test_a_run_without_topics_is_named() -> None:
    with pytest.raises(TopicMismatch, match=r"rollog\.first\.samples does not exist"):
        RunProgress(MemoryBroker(), topics)
