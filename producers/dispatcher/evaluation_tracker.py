"""Evaluations of pinned versions: which held-out prompts still need an answer.

Pure. An evaluation is (name, version); each of its prompts is one task, tried a limited number of times. An evaluation
is released when no worker serves its version any more. The final version is never overtaken, so it is never released.

Where prompts are games of several seats, a task orders all seats of one, and its prompt is answered when each seat has
a finished sample. As long as one lacks it, the whole game is asked again. A task may have ordered fewer seats than
that, where a run was begun before seats were recorded: when it is over, its game is asked again as well.

Example with 2 seats. Task 1.7 orders a game; seat 0 finishes, so the prompt still waits for seat 1. The worker dies,
seat 1 is lost, the game goes out as 1.9 and both seats finish. Of seat 0 the sample of 1.7 counts, of seat 1 that of
1.9.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schemas import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollog.settings.generation import EvaluationConfig
    from schemas import RolloutTask, Sample

greedy = "greedy"
sampled = "sampled"


@dataclass(frozen=True, slots=True, order=True)
class EvaluationKey:
    """Which evaluation: its name and the version it is about."""

    version: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEvaluation:
    """One held-out prompt to be answered under one version."""

    key: EvaluationKey
    prompt_index: int
    attempt: int


@dataclass(slots=True)
class _Evaluation:
    """With `is_over` nothing is asked any more, whatever comes, and the rest is empty: a run has many of these."""

    pending: deque[int] = field(default_factory=deque)
    live: dict[int, str] = field(default_factory=dict)
    done: set[tuple[int, int]] = field(default_factory=set)
    """Prompt and seat."""
    attempts: dict[int, int] = field(default_factory=dict)
    is_started: bool = False
    is_released: bool = False
    is_over: bool = False


class EvaluationTracker:
    """All evaluations of a run, whose prompts are games of so many seats."""

    def __init__(self, config: EvaluationConfig, num_prompts: int, num_seats: int = 1) -> None:
        self._config = config
        self._seats = range(num_seats)
        self._num_prompts = min(num_prompts, config.num_prompts)
        self._evaluations: dict[EvaluationKey, _Evaluation] = {}

    def start(self, version: int, *, is_final: bool = False) -> None:
        """Begin what is due at this version; what the log already answers is not asked again."""
        if not self._num_prompts:
            return
        every = self._config.every_steps
        if not (is_final or version == 0 or (every and version % every == 0)):
            return
        names = [greedy]
        if self._config.sampled and (is_final or version == 0):
            names.append(sampled)
        for name in names:
            self._start_one(self._get(EvaluationKey(version, name)))

    def issued(self, task: RolloutTask) -> None:
        """Note a task of kind evaluation that is in the log."""
        evaluation = self._of(task)
        if evaluation is None or evaluation.is_over:
            return
        index = task.group_id
        evaluation.attempts[index] = max(evaluation.attempts.get(index, 0), task.attempt + 1)
        if not self._is_answered(evaluation, index):
            evaluation.live[index] = task.task_id

    def ended(self, sample: Sample, *, is_task_over: bool) -> None:
        """Note a record of `evaluations`, and whether its task lacks no other one.

        An attempt without an answer is made again while attempts are left.
        """
        evaluation = self._of(sample)
        if evaluation is None or evaluation.is_over:
            return
        index = sample.group_id
        if sample.status is Status.FINISHED:
            evaluation.done.add((index, sample.replica))
            if self._is_answered(evaluation, index):
                self._need_no_more(evaluation, index)
            elif not is_task_over:
                return  # the other seats of its task end, too
        self._ended(evaluation, index, sample.task_id)

    def lost(self, task: RolloutTask) -> None:
        """Note that a task of kind evaluation was declared lost."""
        evaluation = self._of(task)
        if evaluation is not None and not evaluation.is_over:
            self._ended(evaluation, task.group_id, task.task_id)

    def unanswered(self) -> list[EvaluationKey]:
        """Evaluations with prompts to be issued, oldest version first."""
        return sorted(
            key
            for key, evaluation in self._evaluations.items()
            if evaluation.is_started and not evaluation.is_released and evaluation.pending
        )

    @property
    def num_pending(self) -> int:
        """Prompts of all evaluations that are to be issued."""
        return sum(len(self._evaluations[key].pending) for key in self.unanswered())

    def wanted(self, key: EvaluationKey) -> WantedEvaluation | None:
        """The next prompt of an evaluation, or None when each is answered or under way."""
        evaluation = self._evaluations[key]
        if evaluation.is_released or not evaluation.pending:
            return None
        index = evaluation.pending[0]
        return WantedEvaluation(key=key, prompt_index=index, attempt=evaluation.attempts.get(index, 0))

    def take(self, wanted: WantedEvaluation) -> None:
        """Take a wanted prompt off the list: it is being issued."""
        self._evaluations[wanted.key].pending.popleft()

    def release(self, key: EvaluationKey) -> list[str]:
        """Ask nothing more of an evaluation whose version no worker serves; returns its open tasks."""
        evaluation = self._evaluations[key]
        evaluation.is_released = True
        return list(evaluation.live.values())

    def is_complete(self, version: int) -> bool:
        """Whether every evaluation of this version is answered, out of attempts, or released."""
        return all(
            evaluation.is_released or not (evaluation.pending or evaluation.live)
            for key, evaluation in self._evaluations.items()
            if key.version == version and evaluation.is_started
        )

    def to_plain(self) -> list[list[Any]]:
        """What the log says of every evaluation, as JSON has it; of one that is over only that."""
        return [
            [key.version, key.name]
            if evaluation.is_over
            else [
                key.version,
                key.name,
                sorted(evaluation.done),
                list(evaluation.attempts.items()),
                list(evaluation.live.items()),
            ]
            for key, evaluation in self._evaluations.items()
        ]

    def restore(self, plain: Iterable[list[Any]]) -> None:
        """Bring an empty tracker to where `to_plain` was asked; each evaluation is started anew, as after any start.

        Raises ValueError or TypeError for what `to_plain` did not give.
        """
        for version, name, *rest in plain:
            evaluation = self._get(EvaluationKey(int(version), str(name)))
            if not rest:
                evaluation.is_over = True
                continue
            done, attempts, live = rest
            evaluation.done = {(int(index), int(seat)) for index, seat in done}
            evaluation.attempts = {int(index): int(number) for index, number in attempts}
            evaluation.live = {int(index): str(task_id) for index, task_id in live}

    def _start_one(self, evaluation: _Evaluation) -> None:
        if evaluation.is_started:
            return
        evaluation.is_started = True
        if evaluation.is_over:
            return
        evaluation.pending = deque(
            index
            for index in range(self._num_prompts)
            if index not in evaluation.live and not self._is_done(evaluation, index)
        )

    def _ended(self, evaluation: _Evaluation, index: int, task_id: str) -> None:
        if evaluation.live.get(index) == task_id:
            del evaluation.live[index]
        may_try_again = evaluation.attempts.get(index, 0) < self._config.max_attempts
        is_under_way = index in evaluation.live or index in evaluation.pending
        is_covered = is_under_way or self._is_answered(evaluation, index)
        if evaluation.is_started and may_try_again and not is_covered:
            evaluation.pending.append(index)
        self._end(evaluation)

    def _need_no_more(self, evaluation: _Evaluation, index: int) -> None:
        """Take a prompt off the list: a seat of an earlier attempt, still under way, was the last one it lacked."""
        if index in evaluation.pending:
            evaluation.pending.remove(index)

    def _end(self, evaluation: _Evaluation) -> None:
        """Forget what is known of an evaluation of which no prompt is to be asked any more."""
        if evaluation.live or evaluation.pending:
            return
        evaluation.is_over = all(self._is_done(evaluation, index) for index in range(self._num_prompts))
        if evaluation.is_over:
            evaluation.done.clear()
            evaluation.attempts.clear()

    def _is_done(self, evaluation: _Evaluation, index: int) -> bool:
        has_attempts = evaluation.attempts.get(index, 0) < self._config.max_attempts
        return self._is_answered(evaluation, index) or not has_attempts

    def _is_answered(self, evaluation: _Evaluation, index: int) -> bool:
        return all((index, seat) in evaluation.done for seat in self._seats)

    def _get(self, key: EvaluationKey) -> _Evaluation:
        return self._evaluations.setdefault(key, _Evaluation())

    def _of(self, record: RolloutTask | Sample) -> _Evaluation | None:
        if record.evaluation is None or record.pinned_version is None:
            return None
        return self._get(EvaluationKey(record.pinned_version, record.evaluation))
