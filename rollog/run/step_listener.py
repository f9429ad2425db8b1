"""A display for programs: each finished step is handed over once, and nothing is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.errors import BrokerError
from rollog.kernel.logs import get_logger
from rollog.run.display import Display

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consumers.progress import ProgressView
    from consumers.recorded_steps import StepFollower, TrainedStep
    from rollog.run.supervisor import SupervisedRole

log = get_logger("steps")

_poll_seconds = 0.5
_most_polls = 20


class StepListener(Display):
    """Calls `on_step` with each step, in order. What `on_step` raises ends the supervision of the run."""

    def __init__(self, follower: StepFollower, on_step: Callable[[TrainedStep], object]) -> None:
        self._follower = follower
        self._on_step = on_step
        self._num_told = 0

    def close(self) -> None:
        """Stop following."""
        self._follower.close()

    def show(self, view: ProgressView, roles: Sequence[SupervisedRole], seconds: float) -> None:
        """Hand over what the view has and was not handed over yet. A broker that is away is waited for."""
        del roles, seconds
        for _ in range(_most_polls):
            if self._num_told >= len(view.step_timings):
                return
            for step in self._new_steps():
                self._num_told += 1
                self._on_step(step)

    def tell(self, text: str) -> None:
        """Log it."""
        log.info(text)

    def _new_steps(self) -> list[TrainedStep]:
        try:
            return self._follower.poll(_poll_seconds)
        except BrokerError as error:
            log.warning("the newest steps could not be read; following goes on", error=error)
            return []
