"""Samples: the record in which a task ends, finished or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rollog.rules.issued_tasks import replica_seed
from rollog.rules.samples import sample_of_task
from schemas import Kind, Sample, Segment, Status, sample_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import VersionSpan
    from producers.rewards.functions import RewardResult
    from producers.rollout.actions import Ending
    from producers.rollout.scoring import Response
    from rollog.kernel.broker.ports import Record
    from schemas import RolloutTask, Timings


@dataclass(frozen=True, slots=True)
class Replica:
    """One rollout of a task: the task itself, or one of several it orders."""

    task: RolloutTask
    index: int = 0

    @property
    def number(self) -> int:
        """Replica within the group."""
        return self.task.replica + self.index

    @property
    def seed(self) -> int:
        """The task's seed for its first replica, and a function of it for the others."""
        return replica_seed(self.task.seed, self.index)

    @property
    def request_id(self) -> str:
        """Unique in the engine's life."""
        return f"{self.task.task_id}/{self.number}"


def replicas_of(task: RolloutTask) -> list[Replica]:
    """All rollouts that a task orders."""
    return [Replica(task, index) for index in range(task.num_replicas)]


def finished_sample(
    response: Response,
    worker_id: str,
    *,
    reward: RewardResult | None,
    digest_of: Callable[[int], str],
    timings: Timings,
) -> Sample:
    """A scored, trainable sample; without a reward it waits for one."""
    generation = response.generation
    finished = replace(
        _sample(response.replica, worker_id, Status.FINISHED),
        prompt_token_ids=np.asarray(response.prompt_token_ids, dtype="<i4"),
        token_ids=generation.token_ids,
        behaviour_logprobs=generation.behaviour_logprobs,
        loss_mask=response.loss_mask,
        segments=_segments(generation.spans, digest_of),
        response_text=response.text,
        finish_reason=generation.finish_reason,
        timings=timings,
        forks=response.forks,
        turns=response.turns,
        resumed_from=response.resumed_from,
        wasted_tokens=response.wasted_tokens,
        metadata=dict(response.metadata),
    )
    if reward is None:
        return replace(finished, awaits_reward=True)
    return replace(
        finished,
        reward=reward.reward,
        reward_components=reward.components,
        turn_rewards=reward.turn_rewards,
    )


def unfinished_sample(
    replica: Replica, worker_id: str, ending: Ending, *, timings: Timings, wasted_tokens: int = 0
) -> Sample:
    """A sample without a response, which says why; `wasted_tokens` were generated for it."""
    return replace(
        _sample(replica, worker_id, ending.status),
        cancel_reason=ending.cancel_reason,
        error_class=ending.error_class,
        error_message=ending.error_message,
        timings=timings,
        wasted_tokens=wasted_tokens,
    )


def _sample(replica: Replica, worker_id: str, status: Status) -> Sample:
    return sample_of_task(replica.task, replica.number, status=status, worker_id=worker_id, seed=replica.seed)


def undecodable_task_sample(
    record: Record, worker_id: str, grant_id: str, epoch: int, ending: Ending
) -> Sample | None:
    """The failed sample of a task that only its Kafka headers name, or None when they do not."""
    task_id, record_type = record.header("task_id"), record.header("type")
    if task_id is None or record_type not in (None, b"RolloutTask"):
        return None
    group_id, replica, attempt = (
        _number(record.header(name), default)
        for name, default in (("group_id", -1), ("replica", -1), ("attempt", 0))
    )
    return Sample(
        sample_id=sample_id(group_id, replica, attempt),
        task_id=task_id.decode(errors="replace"),
        kind=Kind.EVALUATION if record.header("kind") == b"evaluation" else Kind.TRAINING,
        status=ending.status,
        epoch=epoch,
        grant_id=grant_id,
        worker_id=worker_id,
        group_id=group_id,
        replica=replica,
        attempt=attempt,
        prompt_id="",
        error_class=ending.error_class,
        error_message=ending.error_message,
    )


def _number(header: bytes | None, default: int) -> int:
    try:
        number = default if header is None else int(header)
    except ValueError:
        return default
    return number if -1 <= number < 1 << 31 else default


def _segments(spans: Sequence[VersionSpan], digest_of: Callable[[int], str]) -> tuple[Segment, ...]:
    return tuple(
        Segment(version=span.version, weights_digest=digest_of(span.version), start=span.start, end=span.end)
        for span in spans
    )
