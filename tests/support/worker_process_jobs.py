"""What worker processes of the benchmarks do in tests: their jobs succeed, fail or end the process, by name."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness.variant import Job


def set_up() -> Callable[[Job], tuple[int, int]]:
    """A maker of runs that returns the number of its job and its own process."""
    tries: Counter[int] = Counter()

    def make_run(job: Job) -> tuple[int, int]:
        tries[job.number] += 1
        name = job.variant.name
        if name == "deadly":
            os._exit(3)
        if name == "hopeless" or (name == "shaky" and tries[job.number] == 1):
            raise ValueError("no luck")
        return job.number, os.getpid()

    return make_run
