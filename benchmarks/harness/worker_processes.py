"""Several lanes beside each other: jobs are handed out in order, answers come as they are ready."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.worker_process import Job, Outcome
from rollog.kernel.errors import ChildFailed
from rollog.kernel.processes import launcher_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_close_seconds = 10.0
_num_tries = 2


@dataclass(frozen=True, slots=True)
class _Answer:
    job: Job
    outcome: Outcome


def lane_command(address: str, home: Path) -> list[str]:
    """What starts a lane that makes its runs at the broker of that address."""
    return [sys.executable, "-m", "benchmarks.harness.worker_process", address, str(home)]


class Lanes:
    """Processes that make runs. Use it in the thread that lives as long as they shall."""

    def __init__(self, num_lanes: int, command: Sequence[str]) -> None:
        self._num_lanes = num_lanes
        self._command = launcher_command(command)
        self._answers: queue.Queue[_Answer | ChildFailed] = queue.Queue()
        self._all_ready = threading.Barrier(num_lanes)

    def outcomes(self, jobs: Sequence[Job], warm_up: Job) -> Iterator[tuple[Job, Outcome]]:
        """Every job with its outcome, as they end. A job that fails is tried once more.

        No job begins before every lane has carried out `warm_up`, so that no run shares the machine with a lane that
        is loading libraries. Raises ChildFailed when a lane's process ends by itself or cannot make a run at all.
        """
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        with self._processes() as processes:
            for process in processes:
                threading.Thread(
                    target=self._feed, args=(process, warm_up, waiting), name="bench lane", daemon=True
                ).start()
            for _ in jobs:
                answer = self._answers.get()
                if isinstance(answer, ChildFailed):
                    raise answer
                yield answer.job, answer.outcome

    @contextmanager
    def _processes(self) -> Iterator[list[subprocess.Popen[str]]]:
        processes: list[subprocess.Popen[str]] = []
        try:
            processes.extend(self._start() for _ in range(self._num_lanes))
            yield processes
        except BaseException:
            for process in processes:
                process.kill()
            raise
        finally:
            for process in processes:
                _end(process)

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(  # our own module
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def _feed(self, process: subprocess.Popen[str], warm_up: Job, waiting: queue.SimpleQueue[Job]) -> None:
        try:
            error = _carried_out(process, warm_up).error
            if error is not None:
                self._answers.put(ChildFailed(f"a lane of the benchmark cannot make a run: {error}"))
                return
            self._all_ready.wait()
            while True:
                job = waiting.get_nowait()
                self._answers.put(_Answer(job, _carried_out(process, job)))
        except queue.Empty:
            return
        except (OSError, ValueError) as error:
            self._answers.put(
                ChildFailed(f"a lane of the benchmark (pid {process.pid}) ended by itself: {error}")
            )


def _carried_out(process: subprocess.Popen[str], job: Job) -> Outcome:
    """The outcome of a job at a lane; the last one of several tries."""
    outcome = Outcome(error="never tried")
    for _ in range(_num_tries):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(job.to_json() + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise OSError("its output ended; what it said last stands above")
        outcome = Outcome.from_json(answer)
        if outcome.error is None:
            break
    return outcome


def _end(process: subprocess.Popen[str]) -> None:
    """End a lane: at the end of its input, or else at once."""
    with process:
        try:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(_close_seconds if process.poll() is None else 0)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
