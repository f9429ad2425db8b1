"""The workers' side of a fabricated run: a sample for each task, and heartbeats.

The worker's own `finished_sample`, `unfinished_sample` and `RecordWriter` build and address them. Tokens come from a
small pool of short responses, so that nothing is generated.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from producers.engines.ports import Generation, VersionSpan
from producers.rewards.functions import RewardResult
from producers.rollout.actions import Ending
from producers.rollout.outcomes import Replica, finished_sample, unfinished_sample
from producers.rollout.publishing import RecordWriter
from producers.rollout.scoring import Response
from rollog.kernel.lifecycle import Component
from rollog.rules.headers import SampleLimits, header_of, record_digest
from schemas import FinishReason, Status, Timings, WorkerState, WorkerStatus, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from producers.dispatcher.settings import DispatcherSettings
    from producers.rollout.sender import Outgoing
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.rules.headers import SampleHeader
    from schemas import Grant, RolloutTask, Sample

flush_seconds = 600.0
_num_responses = 64
_response_tokens = (12, 36)
_prompt_tokens = tuple(range(1, 9))
_failed = Ending(status=Status.FAILED, error_class="RewardError", error_message="no answer in time")


class Answers(Component):
    """The workers of a run. `positions` are the next offsets of `samples`: only these workers write there."""

    def __init__(
        self,
        broker: Broker,
        topics: RunTopics,
        settings: DispatcherSettings,
        grants: Mapping[str, Grant],
        seed: int,
    ) -> None:
        self._producer = broker.producer(client_id="growth-samples")
        self._writer = RecordWriter(topics, max_record_bytes=settings.broker.max_record_bytes)
        self._grants = grants
        self._limits = SampleLimits(
            num_partitions=settings.broker.samples_partitions,
            num_replicas=settings.groups.num_replicas,
            temperature=settings.sampling.temperature,
        )
        self._noise = random.Random(seed)
        self._responses = [_response(self._noise) for _ in range(_num_responses)]
        self._digests: dict[int, str] = {}
        self.positions = [0] * settings.broker.samples_partitions

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()

    def flush(self) -> None:
        """Wait until every record is in the log."""
        self._producer.flush(flush_seconds)

    def serve(self, version: int, digest: str) -> None:
        """From now on responses are of this version; of the ones before only two are kept."""
        self._digests[version] = digest
        self._digests.pop(version - 3, None)

    def finish(self, task: RolloutTask, version: int, reward: float) -> tuple[SampleHeader, Sample]:
        """End a task of training with a response of `version`."""
        sample = self._finished(task, version, reward)
        return self._header(task, sample), sample

    def fail(self, task: RolloutTask) -> SampleHeader:
        """End a task of training without one."""
        worker_id = self._grants[task.grant_id].worker_id
        sample = unfinished_sample(Replica(task), worker_id, _failed, timings=self._timings())
        return self._header(task, sample)

    def evaluate(self, task: RolloutTask, version: int) -> None:
        """End a task of evaluation."""
        sample = self._finished(task, version, float(self._noise.randrange(2)))
        self._send(self._writer.sample(sample, task.sample_partition)[0])

    def beat(self, version: int, open_tasks: Iterable[RolloutTask], positions: Mapping[str, int]) -> None:
        """Every worker says what it serves, what it holds, and how far it has read its tasks."""
        tasks = list(open_tasks)
        for grant in self._grants.values():
            named = tuple(task.task_id for task in tasks if task.grant_id == grant.grant_id)
            status = WorkerStatus(
                worker_id=grant.worker_id,
                state=WorkerState.SERVING,
                capacity=len(named),
                served_version=version,
                served_digest=self._digests[version],
                grant_id=grant.grant_id,
                epoch=grant.epoch,
                open_tasks=named,
                first_versions=dict.fromkeys(named, version),
                tasks_position=positions[grant.grant_id],
            )
            self._send(self._writer.heartbeat(status))

    def _finished(self, task: RolloutTask, version: int, reward: float) -> Sample:
        generation, text = self._noise.choice(self._responses)
        spans = (VersionSpan(version=version, start=0, end=len(generation.token_ids)),)
        response = Response.of_one_turn(
            Replica(task),
            Generation(
                token_ids=generation.token_ids,
                behaviour_logprobs=generation.behaviour_logprobs,
                spans=spans,
                finish_reason=FinishReason.STOP,
            ),
            prompt_token_ids=_prompt_tokens,
            text=text,
        )
        return finished_sample(
            response,
            self._grants[task.grant_id].worker_id,
            reward=RewardResult(reward=reward),
            digest_of=self._digests.__getitem__,
            timings=self._timings(),
        )

    def _timings(self) -> Timings:
        return Timings(generation_seconds=1.0 + self._noise.random())

    def _header(self, task: RolloutTask, sample: Sample) -> SampleHeader:
        """Send a sample of training; returns its header as the trainer reads it."""
        outgoing, sample = self._writer.sample(sample, task.sample_partition)
        self._send(outgoing)
        partition = task.sample_partition
        offset = self.positions[partition]
        self.positions[partition] += 1
        return header_of(
            sample,
            partition=partition,
            offset=offset,
            digest=record_digest(outgoing.value),
            limits=self._limits,
        )

    def _send(self, outgoing: Outgoing) -> None:
        self._producer.send(
            outgoing.topic, outgoing.partition, outgoing.value, key=outgoing.key, headers=outgoing.headers
        )


def _response(noise: random.Random) -> tuple[Generation, str]:
    length = noise.randint(*_response_tokens)
    generation = Generation(
        token_ids=int32_array([noise.randrange(256) for _ in range(length)]),
        behaviour_logprobs=float32_array([-noise.random() for _ in range(length)]),
        spans=(),
        finish_reason=FinishReason.STOP,
    )
    return generation, "answer " * (length // 6)
