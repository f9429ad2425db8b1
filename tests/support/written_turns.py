"""Turns of rollouts on a topic, as an attempt that was lost leaves them, and as strangers forge them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from producers.sessions.turn_chain import Branches
from schemas import FinishReason, Segment, Turn, float32_array, int32_array
from schemas.codec import encode
from schemas.headers import headers_of
from support.builders import a_task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from producers.sessions.turn_chain import Chain
    from rollog.kernel.broker.ports import Headers, Producer
    from schemas import RolloutTask


def a_turn(group: int, number: int, *, attempt: int = 0, num_tokens: int = 2, **changes: Any) -> Turn:
    """Turn `number` of a rollout whose every input is the one before, what was sampled, and as much context."""
    turn = Turn(
        task_id=f"{attempt + 1}.{group}",
        worker_id="w",
        group_id=group,
        replica=0,
        attempt=attempt,
        number=number,
        parent=number - 1,
        shared=2 * num_tokens * number,
        context=int32_array([group] * num_tokens),
        token_ids=int32_array([number] * num_tokens),
        behaviour_logprobs=float32_array([-1] * num_tokens),
        segments=(Segment(version=0, weights_digest="ab" * 8, start=0, end=num_tokens),),
        finish_reason=FinishReason.STOP,
    )
    return replace(turn, **changes)


def taking_over(group: int, *, attempt: int = 1, partition: int = 0, position: int = 0) -> RolloutTask:
    """A task that may take over what attempts from 0 on left."""
    return a_task(
        group,
        0,
        task_id=f"{attempt + 1}.{group}",
        attempt=attempt,
        sample_partition=partition,
        resume_attempt=0,
        turns_position=position,
    )


def headers_like(group: int) -> Headers:
    """Headers of a turn of that group's replica 0."""
    return headers_of(a_turn(group, 0))


def write(producer: Producer, topic: str, turn: Turn, partition: int = 0) -> None:
    """Send a turn, without waiting for it."""
    producer.send(topic, partition, encode(turn), headers=headers_of(turn))


def newest_chain(turns: Iterable[Turn], *, earliest_attempt: int, attempt: int) -> Chain | None:
    """What attempt `attempt` takes over from these turns of its replica, which are in the order of the log."""
    branches = Branches(earliest_attempt=earliest_attempt, attempt=attempt)
    for turn in turns:
        branches.add(turn, num_bytes=1)
    return branches.newest_chain()
