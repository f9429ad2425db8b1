"""Several processes that make runs beside each other, with the standard library's process pool.

Every process sets itself up once, makes one run that counts for nothing, and waits until the others have done so too;
then jobs are handed out in order, and outcomes come as they are ready. The processes end with this one, however it
ends: each holds one end of a pipe, and ends itself when the other end is closed.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from rollog.kernel.errors import ChildFailed
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from multiprocessing.connection import Connection
    from threading import Barrier

    from benchmarks.harness.variant import Job, Variant

Result = TypeVar("Result")
MakeRun = Callable[["Job"], Result]

_num_tries = 2
_exit_status_orphaned = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Result]):
    """What became of a job: its result, or the error of its last try."""

    result: Result | None = None
    error: str | None = None


def outcomes(
    jobs: Sequence[Job], warm_up: Job, *, num_processes: int, set_up: Callable[[], MakeRun[Result]]
) -> Generator[tuple[Job, Outcome[Result]], None, None]:
    """Every job with its outcome, as they end. A job that fails is tried once more.

    `set_up` is called once in each process and returns what makes a run; both travel by name, so they stand in a
    module. No job begins before every process has made the run of `warm_up`, so that no run shares the machine with a
    process that is loading libraries.

    Raises ChildFailed when a process ends by itself, or cannot make a run at all.
    """
    with _pool(num_processes, set_up) as pool:
        try:
            _warm_up(pool, num_processes, warm_up)
            futures = {pool.submit(_made_run, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], cast("Outcome[Result]", future.result())
        except BrokenProcessPool as error:
            raise ChildFailed(f"a worker process of the benchmark ended by itself: {error}") from error


def told_results(
    ended: Iterator[tuple[Job, Outcome[Result]]],
    num_jobs: int,
    *,
    draw: str,
    text: Callable[[Variant, Result], str],
    on_progress: Callable[[str], None],
) -> Iterator[tuple[Job, Result]]:
    """Results as they end, each told as a `text`. A job that failed is told, too, and left out.

    `draw` is what the experiment calls a draw.
    """
    for number, (job, outcome) in enumerate(ended, start=1):
        place = f"{number}/{num_jobs} {job.variant.name} {draw} {job.number}"
        if outcome.result is None:
            on_progress(f"{place}: FAILED twice, its {draw} is left out: {outcome.error}")
        else:
            on_progress(f"{place}: {text(job.variant, outcome.result)}")
            yield job, outcome.result


@contextmanager
def _pool(num_processes: int, set_up: Callable[[], MakeRun[Result]]) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        num_processes,
        mp_context=context,
        initializer=_prepare,
        initargs=(set_up, theirs, context.Barrier(num_processes)),
    )
    try:
        yield pool
    except BaseException:
        # A run may have minutes to go, and nobody waits for it any more.
        ours.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        ours.close()
        theirs.close()


def _warm_up(pool: ProcessPoolExecutor, num_processes: int, job: Job) -> None:
    """Make the run of `job` once in every process: none takes a second one before all have made theirs."""
    for future in as_completed([pool.submit(_made_warm_up, job) for _ in range(num_processes)]):
        error = future.result()
        if error is not None:
            raise ChildFailed(f"a worker process of the benchmark cannot make a run: {error}")


@dataclass(frozen=True, slots=True)
class _WorkerProcess:
    """What a process of the pool keeps between its jobs."""

    make_run: MakeRun[object]
    all_ready: Barrier


_this_process: _WorkerProcess | None = None


def _prepare(set_up: Callable[[], MakeRun[object]], lifeline: Connection, all_ready: Barrier) -> None:
    global _this_process  # noqa: PLW0603  # the pool hands nothing else from its initializer to its jobs
    threading.Thread(target=_end_with_parent, args=(lifeline,), name="lifeline", daemon=True).start()
    configure_logging(level=os.environ.get("ROLLOG_LOG_LEVEL", "error"))
    _this_process = _WorkerProcess(set_up(), all_ready)


def _end_with_parent(lifeline: Connection) -> None:
    """End this process when the parent has closed the pipe, or is no more. Nothing is ever sent through it."""
    try:
        lifeline.recv_bytes()
    finally:
        os._exit(_exit_status_orphaned)


def _made_warm_up(job: Job) -> str | None:
    """What kept this process from making a run, if anything did."""
    assert _this_process is not None
    error = _made_run(job).error
    if error is not None:
        _this_process.all_ready.abort()
        return error
    # Where another process could not, its own answer says why.
    with suppress(BrokenBarrierError):
        _this_process.all_ready.wait()
    return None


def _made_run(job: Job) -> Outcome[object]:
    """The outcome of a job; the last one of several tries."""
    assert _this_process is not None
    outcome: Outcome[object] = Outcome(error="never tried")
    for _ in range(_num_tries):
        outcome = attempt(_this_process.make_run, job)
        if outcome.error is None:
            break
    return outcome


def attempt(make_run: MakeRun[Result], job: Job) -> Outcome[Result]:
    """One try of a job; whatever ends it is its outcome."""
    try:
        return Outcome(result=make_run(job))
    except Exception as error:  # noqa: BLE001  # any role may end in any way; the caller hears of it
        return Outcome(error=f"{type(error).__name__}: {error}")
