"""Deaths by SIGKILL in as many runs of the demo as they take, each run audited and trained again."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.chaos.checks import verify
from benchmarks.chaos.faults import of_patches
from benchmarks.chaos.killed_run import Target, chaos_run, state_directory
from benchmarks.chaos.kills import Role, roles_of_every_run
from benchmarks.chaos.suspended_run import suspended_run
from benchmarks.harness.demo_run import as_published, set_options
from benchmarks.harness.figures import Figure
from rollog.kernel.crash_points import CrashPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import StrEnum
    from pathlib import Path

demo_settings: Mapping[str, object] = {
    **as_published,
    "evaluation.every_steps": 0,
    "groups.groups_per_batch": 4,
    "trainer.checkpoint_every_steps": 3,
    "trainer.keep_newest_weights": 2,
    "trainer.weights_grace_seconds": 1.0,
}
_kills_of_a_run = 50


def measure_chaos(
    *, num_kills: int, seed: int, engine: str, cache: Path, on_progress: Callable[[str], None]
) -> list[Figure]:
    """Runs of the demo with all targets until so many deaths took place. Raises ChildFailed as the parts do."""
    targets = targets_of(engine)
    options = set_options({**demo_settings, "rollout.engine": engine})
    kills: Counter[StrEnum] = Counter()
    num_runs = num_missed = 0
    while kills.total() < num_kills:
        with state_directory(cache) as home:
            run = chaos_run(
                f"chaos-{num_runs}",
                home,
                options,
                num_kills=min(_kills_of_a_run, num_kills - kills.total()),
                seed=seed + num_runs,
                targets=targets,
                on_kill=on_progress,
            )
            for line in verify(run):
                on_progress(line)
        kills.update(run.kills)
        num_runs += 1
        num_missed += len(run.missed)
    return _figures(kills, num_runs, num_missed)


def measure_suspensions(
    *, suspended_seconds: float, seed: int, engine: str, cache: Path, on_progress: Callable[[str], None]
) -> list[Figure]:
    """One run of the demo in which everybody is suspended once, at a moment and at each window, in a drawn order.

    Raises ChildFailed where the run does not go on, or something is off in it.
    """
    everyone: list[Target | None] = [*targets_of(engine), None]
    for unreached in (CrashPoint.REDO_RUNNING, CrashPoint.GRANT_SENT):
        everyone.remove(unreached)  # nobody comes by there while nobody dies
    random.Random(seed).shuffle(everyone)  # a plan that can be repeated
    with state_directory(cache) as home:
        run = suspended_run(
            "chaos-suspended",
            home,
            set_options({**demo_settings, "rollout.engine": engine}),
            suspensions=[(target, suspended_seconds) for target in everyone],
            on_suspended=on_progress,
        )
        for line in verify(run):
            on_progress(line)
    return [
        Figure(
            name=f"chaos.suspensions.{suspended_seconds:g}s",
            value=len(everyone),
            unit="suspensions, the run audited clean and replayed equal",
        )
    ]


def targets_of(engine: str) -> list[Target]:
    """Who can be killed or suspended in runs with that inference engine."""
    there = {*roles_of_every_run, *([Role.ENGINE] if engine == "vllm" else [])}
    # The demo's model is float32: its versions are no patches, and nobody comes by the window of those.
    windows = [point for point in CrashPoint if point not in of_patches]
    # In this order, by which the plans of a seed are drawn.
    return [*(role for role in Role if role in there), *windows]


def _figures(kills: Counter[StrEnum], num_runs: int, num_missed: int) -> list[Figure]:
    """What took place; that nothing was off is said by there being figures."""
    return [
        Figure(
            name="chaos.kills", value=kills.total(), unit="deaths, every run audited clean and replayed equal"
        ),
        Figure(name="chaos.runs", value=num_runs, unit="runs"),
        Figure(
            name="chaos.missed",
            value=num_missed,
            unit="planned deaths that found nobody",
            higher_is_better=False,
        ),
        *(
            Figure(name=f"chaos.kills.{target}", value=number, unit="deaths")
            for target, number in sorted(kills.items())
        ),
    ]
