"""What one run took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run took, in seconds of the simulated engine, and what the ideal takes (0 where there is none).

    Of a run of several steps it is the time of one step; `long_trained` is then the share of its longest prompts that
    were trained. `busy_share` is the share of the slots' time in which tokens were made, where it is asked for.
    """

    seconds: float
    ideal_seconds: float
    num_tasks: int
    long_trained: float = 0.0
    busy_share: float = 0.0


Outcomes = dict[str, dict[int, RunResult]]
"""By name of the variant and number of the workload."""
