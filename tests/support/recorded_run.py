"""A whole run in memory that is over, with its manifest: something to archive, to trace and to prune."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollog.kernel.runs import register_run
from rollog.kernel.weights import WeightsStore
from rollog.settings.settings import Settings, config_sha256
from schemas import RunManifest
from support.simulated_plan import Plan
from support.simulated_run import SimulatedRun

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def recorded_run(plan: Plan | None = None, *, is_finished: bool = True) -> Iterator[SimulatedRun]:
    """Two workers, one killed in the middle, and an unreadable record among the samples."""
    # Genesis names the configuration of the manifest, as it does in any run.
    with SimulatedRun(
        plan or Plan(num_steps=4), manifest_json_of=lambda run: a_manifest_of(run).config_json
    ) as run:
        register_run(run.broker, a_manifest_of(run))
        run.start_worker()
        run.hand.send(run.topics.samples, 1, b"no sample", headers=[("task_id", b"?")])
        if is_finished:
            run.finish()
        yield run


def a_manifest_of(run: SimulatedRun) -> RunManifest:
    settings = Settings.model_validate(
        {
            "run": {"name": run.topics.run, "num_steps": run.plan.num_steps},
            "groups": run.plan.groups.model_dump(),
            "broker": {"samples_partitions": 2, "max_workers": 3},
        }
    )
    return RunManifest(
        run=run.topics.run,
        prefix=run.topics.prefix,
        seed=0,
        config_json=settings.to_manifest(),
        config_sha256=config_sha256(settings.to_manifest()),
        weights_uri=f"memory://{run.topics.run}",
        rollog_version="0",
        created_unix_seconds=0.0,
    )


def store_of(run: SimulatedRun) -> WeightsStore:
    """Where the run published its weights."""
    return WeightsStore(f"memory://{run.topics.run}")
