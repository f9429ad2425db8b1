"""From samples to records: topic, partition, headers, size; whatever does not fit becomes a failed sample."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from producers.rollout.sender import Outgoing
from rollog.kernel.broker.limits import record_bytes
from rollog.kernel.errors import DataError
from rollog.rules.dead_letters import dead_letter
from schemas import Kind, SchemaError, Status, WorkerStatus
from schemas.arrays import float32_array, int32_array, uint8_array
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    import asyncio

    from rollog.kernel.broker.ports import Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import Sample, Turn

too_large = "too_large"


class TurnTooLarge(DataError):
    """A turn that does not fit into a record."""


class RecordWriter:
    """Writes the records of one worker."""

    def __init__(self, topics: RunTopics, *, max_record_bytes: int) -> None:
        self._topics = topics
        self._max_record_bytes = max_record_bytes

    def sample(self, sample: Sample, partition: int) -> tuple[Outgoing, Sample]:
        """The record of a sample, and the sample it really holds: a failed one where the given does not fit.

        Raises SchemaError when not even the failed one can be written.
        """
        try:
            outgoing = self._outgoing(sample, partition)
        except SchemaError as error:
            sample = failed(sample, "InvalidSample", str(error))
            return self._outgoing(sample, partition), sample
        size = record_bytes(outgoing.value, None, outgoing.headers)
        if size <= self._max_record_bytes or sample.status is not Status.FINISHED:
            return outgoing, sample
        message = (
            f"the sample has {size} bytes, more than broker.max_record_bytes = {self._max_record_bytes}; raise "
            "it, or shorten prompts or sampling.max_tokens"
        )
        sample = failed(sample, too_large, message)
        return self._outgoing(sample, partition), sample

    def _outgoing(self, sample: Sample, partition: int) -> Outgoing:
        topic = self._topics.evaluations if sample.kind is Kind.EVALUATION else self._topics.samples
        return Outgoing(
            topic=topic,
            partition=partition,
            value=encode(sample),
            headers=headers_of(sample),
            task_id=sample.task_id,
        )

    def turn(self, turn: Turn, partition: int, acknowledged: asyncio.Event) -> Outgoing:
        """The record of a turn. Raises TurnTooLarge, SchemaError."""
        headers = headers_of(turn)
        value = encode(turn)
        size = record_bytes(value, None, headers)
        if size > self._max_record_bytes:
            raise TurnTooLarge(
                f"turn {turn.number} has {size} bytes, more than broker.max_record_bytes = {self._max_record_bytes}; "
                "raise it, or shorten what the environment says"
            )
        return Outgoing(
            topic=self._topics.turns,
            partition=partition,
            value=value,
            headers=headers,
            acknowledged=acknowledged,
        )

    def heartbeat(self, status: WorkerStatus) -> Outgoing:
        """The record of a heartbeat."""
        key = status.worker_id.encode()
        return Outgoing(
            topic=self._topics.workers, partition=0, value=encode(status), key=key, headers=headers_of(status)
        )

    def tombstone(self, worker_id: str) -> Outgoing:
        """The tombstone of a worker that leaves."""
        return Outgoing(topic=self._topics.workers, partition=0, value=None, key=worker_id.encode())

    def dead_letter(self, record: Record, error: Exception, owner: str) -> Outgoing:
        """A refused record with its bytes, place and reason."""
        letter = dead_letter(
            record,
            reason=str(error),
            error_class=type(error).__name__,
            owner=owner,
            most_bytes=self._max_record_bytes,
        )
        return Outgoing(
            topic=self._topics.dead_letters, partition=0, value=encode(letter), headers=headers_of(letter)
        )


def failed(sample: Sample, error_class: str, message: str) -> Sample:
    """The same task, failed, without what made the sample large or invalid."""
    return replace(
        sample,
        status=Status.FAILED,
        forks=(),
        turns=(),
        turn_rewards=(),
        payload=None,
        prompt_token_ids=int32_array(),
        token_ids=int32_array(),
        behaviour_logprobs=float32_array(),
        loss_mask=uint8_array(),
        segments=(),
        response_text="",
        reward=None,
        reward_components={},
        finish_reason=None,
        error_class=error_class,
        error_message=message[:2000],
        wasted_tokens=_num_generated(sample) + sample.wasted_tokens,
        metadata={},
    )


def _num_generated(sample: Sample) -> int:
    if sample.payload is not None:
        return sum(sample.payload.num_tokens)
    return sample.num_tokens + sum(len(fork.token_ids) for fork in sample.forks)
