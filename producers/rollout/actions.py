"""What the session asks its shell to do, and how a task ends without being finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas import Kind, Status

if TYPE_CHECKING:
    from schemas import RolloutTask, WeightVersion

version_gone = "version_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a task ends without a finished sample."""

    status: Status
    cancel_reason: str | None = None
    error_class: str | None = None
    error_message: str | None = None


def cancelled(reason: str) -> Ending:
    """An ending for a task that the dispatcher cancelled, or that the worker leaves."""
    return Ending(status=Status.CANCELLED, cancel_reason=reason)


def expired(reason: str) -> Ending:
    """An ending for a task whose grant or pinned version does not hold any more."""
    return Ending(status=Status.EXPIRED, cancel_reason=reason)


def failed(error_class: str, message: str) -> Ending:
    """An ending for a rollout that could not be made; the message is cut to 2,000 characters."""
    return Ending(status=Status.FAILED, error_class=error_class, error_message=message[:2000])


@dataclass(frozen=True, slots=True)
class ReadTasks:
    """Read this tasks partition from this offset on, and no other."""

    partition: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class StopReading:
    """Read no tasks partition."""


@dataclass(frozen=True, slots=True)
class Start:
    """Make this rollout; report of each replica `replica_generated`, then `replica_ended`: its sample is on its way."""

    task: RolloutTask


@dataclass(frozen=True, slots=True)
class End:
    """Write the sample (one per replica) of a task that never ran."""

    task: RolloutTask
    ending: Ending


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop a running rollout; its ending is known to the session."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Load:
    """Fetch this version while the served one stays in service; report `fetched`, `fetch_failed` or `disown`."""

    notice: WeightVersion


@dataclass(frozen=True, slots=True)
class Swap:
    """Overwrite the engine's weights by the fetched file; report `loaded` or `load_failed`.

    The rollouts of the `suspended` tasks are taken out of the engine first, and go on when a version is loaded.
    """

    notice: WeightVersion
    suspended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave:
    """End everything and go. With an error the process ends with it."""

    reason: str
    error: str | None = None


Action = ReadTasks | StopReading | Start | End | Interrupt | Load | Swap | Leave


def refusal(task: RolloutTask, reward_function: str) -> Ending | None:
    """Why a task is not even begun, or None.

    Truncated sampling is refused for training, because the recorded logprobs would not be those of the
    distribution that is trained; another reward function than the run's, because a record may not choose what
    code runs here.
    """
    if task.reward and task.reward != reward_function:
        return failed(
            "UnknownReward",
            f"task {task.task_id} asks for the reward {task.reward!r}; this worker computes {reward_function!r}",
        )
    if task.kind is not Kind.TRAINING:
        return None
    sampling = task.sampling
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    for name, value in neutral.items():
        if getattr(sampling, name) != value:
            return failed(
                "InvalidSampling",
                f"task {task.task_id} trains with {name} = {getattr(sampling, name)}; only {value} keeps the "
                "recorded logprobs those of the distribution that is trained",
            )
    if sampling.temperature <= 0:
        return failed(
            "InvalidSampling", f"task {task.task_id} trains with temperature {sampling.temperature}"
        )
    return None
