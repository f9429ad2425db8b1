"""What a task says: prompt, seed, sampling, partition, and the positions that were read when it was issued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.dispatcher.evaluation_tracker import greedy
from rollog.rules.freshness import min_version
from rollog.rules.task_names import evaluation_seed, task_id_of, training_seed
from schemas import Kind, RolloutTask, SamplingParameters

if TYPE_CHECKING:
    from producers.dispatcher.evaluation_tracker import WantedEvaluation
    from producers.dispatcher.group_tracker import Wanted
    from producers.dispatcher.settings import DispatcherSettings
    from schemas import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuePosition:
    """What the dispatcher had read, and as which policy version, when it issued a task."""

    version: int
    alpha: float
    ledger_position: int
    samples_positions: tuple[int, ...]
    turns_positions: tuple[int, ...] = ()
    """Ends of `turns` fetched before now; none where turns are not kept."""

    def turns_position(self, wanted: Wanted, partition: int) -> int | None:
        """Where turns of a replica begin: as its first task said, or here."""
        if not self.turns_positions:
            return None
        return self.turns_positions[partition] if wanted.turns_position is None else wanted.turns_position


class TaskWriter:
    """Builds tasks under one epoch, numbering them."""

    def __init__(self, settings: DispatcherSettings, epoch: int) -> None:
        self._settings = settings
        self._epoch = epoch
        self._sequence = 0
        self._samplings: dict[float, SamplingParameters] = {}
        """By temperature: nothing else of it differs between tasks."""

    @property
    def last_task(self) -> tuple[int, int]:
        """(epoch, sequence) of the task built last; sequence 0 before any."""
        return (self._epoch, self._sequence)

    def min_version(self, wanted: Wanted, position: IssuePosition) -> int:
        """The version a worker must serve to take the attempt."""
        return min_version(
            position.version,
            wanted.num_groups_ahead,
            self._settings.groups.groups_per_batch,
            position.alpha,
            protected=wanted.protected,
        )

    def training(
        self, wanted: Wanted, prompt: Prompt, grant_id: str, position: IssuePosition, num_replicas: int = 1
    ) -> RolloutTask:
        """The task of one attempt at one replica (or at `num_replicas` from it on)."""
        run_seed = self._settings.run_config.seed
        partition = wanted.group_id % self._settings.broker.samples_partitions
        turns_position = position.turns_position(wanted, partition)
        return RolloutTask(
            task_id=self._next_id(),
            kind=Kind.TRAINING,
            epoch=self._epoch,
            grant_id=grant_id,
            group_id=wanted.group_id,
            replica=wanted.replica,
            attempt=wanted.attempt,
            seed=training_seed(run_seed, wanted.group_id, wanted.replica, wanted.attempt),
            prompt=prompt,
            sampling=self._sampling(self._settings.sampling.temperature),
            sample_partition=partition,
            reward=self._settings.reward.identity or "",
            num_replicas=num_replicas,
            min_version=self.min_version(wanted, position),
            issued_version=position.version,
            issue_reason=wanted.reason,
            protected=wanted.protected,
            timeout_seconds=self._settings.dispatch.task_timeout_seconds,
            ledger_position=position.ledger_position,
            samples_positions=position.samples_positions,
            turns_position=turns_position,
            resume_attempt=None if turns_position is None else wanted.resume_attempt,
        )

    def evaluation(
        self, wanted: WantedEvaluation, prompt: Prompt, grant_id: str, position: IssuePosition
    ) -> RolloutTask:
        """The task of one held-out prompt, of all its seats; its group_id is the prompt's place in the held-out set."""
        key = wanted.key
        temperature = 0.0 if key.name == greedy else self._settings.sampling.temperature
        return RolloutTask(
            task_id=self._next_id(),
            kind=Kind.EVALUATION,
            epoch=self._epoch,
            grant_id=grant_id,
            group_id=wanted.prompt_index,
            replica=0,
            attempt=wanted.attempt,
            seed=evaluation_seed(
                self._settings.run_config.seed, key.name, key.version, wanted.prompt_index, wanted.attempt
            ),
            prompt=prompt,
            sampling=self._sampling(temperature),
            sample_partition=wanted.prompt_index % self._settings.broker.samples_partitions,
            reward=self._settings.reward.identity or "",
            num_replicas=self._settings.environment.seats,
            min_version=key.version,
            issued_version=position.version,
            pinned_version=key.version,
            evaluation=key.name,
            timeout_seconds=self._settings.dispatch.task_timeout_seconds,
            ledger_position=position.ledger_position,
            samples_positions=position.samples_positions,
        )

    def _sampling(self, temperature: float) -> SamplingParameters:
        if temperature not in self._samplings:
            chosen = self._settings.sampling
            self._samplings[temperature] = SamplingParameters(
                temperature=temperature, max_tokens=chosen.max_tokens, stop=chosen.stop
            )
        return self._samplings[temperature]

    def _next_id(self) -> str:
        self._sequence += 1
        return task_id_of(self._epoch, self._sequence)
