"""A benchmark with two worker processes that says who they are and then waits to be killed."""

from __future__ import annotations

import sys
import time

from benchmarks.harness.variant import Job, Variant
from benchmarks.harness.worker_processes import outcomes
from support.worker_process_jobs import set_up


def main() -> None:
    """Print the process of each job, and stay."""
    variant = Variant(name="sound", num_groups=2, group_size=2, slots_per_worker=4)
    jobs = [Job(variant=variant, seed=0, number=number, speed=100.0) for number in range(8)]
    found = outcomes(jobs, jobs[0], num_processes=2, set_up=set_up)
    for _, outcome in found:
        if outcome.result is not None:
            sys.stdout.write(f"{outcome.result[1]}\n")
            sys.stdout.flush()
        time.sleep(30.0)


if __name__ == "__main__":
    main()
