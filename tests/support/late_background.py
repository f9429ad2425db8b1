"""What runs beside training, when a test says so: nothing here is left to a thread's luck."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from support.simulated_parts import Killed
from trainer.in_flight import Background

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class LateFuture(Future[Result]):
    """Work that is done after so many looks that found it undone, or when somebody waits for it, or by `run`.

    Without `looks` nobody's look does it. Where it `is_unnoticed`, looks find it undone even so.
    """

    def __init__(self, work: Callable[[], Result], looks: int | None) -> None:
        super().__init__()
        self._work = work
        self._looks = looks
        self.is_dead = False
        self.is_unnoticed = False

    def run(self) -> None:
        """Do it, if it is not done."""
        if super().done():
            return
        if self.is_dead:
            self.set_exception(Killed())
            return
        try:
            self.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            self.set_exception(error)

    def done(self) -> bool:
        if self.is_unnoticed:
            return False
        if not super().done() and self._looks is not None:
            if self._looks == 0:
                self.run()
            else:
                self._looks -= 1
        return super().done()

    def result(self, timeout: float | None = None) -> Result:
        self.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(timeout)


class LateExecutor(Executor):
    """Gives out late futures, and remembers them; `before_work` is called before each does its work."""

    def __init__(self, looks: int | None = None, before_work: Callable[[], None] = lambda: None) -> None:
        self.looks = looks
        self.before_work = before_work
        self.futures: list[LateFuture[Any]] = []

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> LateFuture[Result]:
        def work() -> Result:
            self.before_work()
            return fn(*args, **kwargs)

        future = LateFuture(work, self.looks)
        self.futures.append(future)
        return future

    def land(self) -> None:
        """Do everything that is not done."""
        for future in self.futures:
            future.run()

    def die(self) -> None:
        """What is not done never will be: whoever waits for it dies as well."""
        for future in self.futures:
            future.is_dead = True


def late_background(looks: int | None = None) -> Background:
    """Steps land after so many looks, checkpoints are finished at the first one; no pause between attempts."""
    return Background(steps=LateExecutor(looks), checkpoints=LateExecutor(0), pauses_seconds=())


def hurried_background() -> Background:
    """Threads, as always, and no attempt to write that is made again."""
    threads = Background.threads()
    return Background(steps=threads.steps, checkpoints=threads.checkpoints, pauses_seconds=())
