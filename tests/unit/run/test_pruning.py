"""`rollog topics prune` on whole runs: what goes, what is refused, and that a pruned run goes on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import read_to_end
from support.recorded_run import a_manifest_of, recorded_run, store_of
from support.simulated_plan import Plan

from consumers.ledger import read_ledger
from consumers.trained_samples import trained_samples
from rollog.kernel.errors import ConfigError, LedgerError
from rollog.kernel.weights import WeightsStore
from rollog.run.pruning import prune_samples
from rollog.run.recorded_run import RecordedRun
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from support.simulated_run import SimulatedRun

    from rollog.kernel.broker.ports import Record
    from schemas import Sample


def prune(run: SimulatedRun, keep_steps: int, *, is_dry_run: bool = False) -> list[str]:
    source = RecordedRun(
        broker=run.broker,
        topics=run.topics,
        store=store_of(run),
        settings=Settings(),
        manifest=a_manifest_of(run),
        is_archive=False,
    )
    return list(prune_samples(source, run.home, keep_steps=keep_steps, is_dry_run=is_dry_run))


def samples(run: SimulatedRun) -> list[Record]:
    return read_to_end(run.broker, run.topics.samples, range(2))


def reach(run: SimulatedRun, version: int) -> None:
    for _ in range(200):
        run.calm_round()
        if read_ledger(run.broker, run.topics)[-1].record.version >= version:
            return
    raise AssertionError(f"version {version} was not reached")


def no_advantages(
    groups: Sequence[Sequence[Sample]], _changes: Mapping[str, object]
) -> list[list[float | None]]:
    return [[None] * len(group) for group in groups]


def test_deleting_samples_loads_no_training_library() -> None:
    loads = "import sys, rollog.run.pruning; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loads], check=False).returncode == 0


def test_a_pruned_run_is_recovered_by_every_role_and_comes_to_its_end() -> None:
    with recorded_run(Plan(num_steps=6, checkpoint_every_steps=1), is_finished=False) as run:
        reach(run, 4)
        before = samples(run)
        lines = prune(run, 1)
        after = samples(run)
        assert 0 < len(after) < len(before)
        assert all(record in before for record in after)
        assert "were deleted" in lines[0]
        assert "steps 1 to" in lines[2]
        run.kill_trainer()
        run.kill_dispatcher()
        run.come_to_the_end()
        run.auditor.audit_live(WeightsStore(run.trainer_settings.weights_uri))
        assert read_ledger(run.broker, run.topics)[-1].record.version == 6
        with pytest.raises(LedgerError, match="no longer in the topic"):
            list(trained_samples(run.broker, run.topics, store_of(run), advantages=no_advantages))


def test_without_a_checkpoint_nothing_of_a_run_that_goes_on_may_go() -> None:
    with recorded_run(Plan(num_steps=6), is_finished=False) as run:
        reach(run, 3)
        before = samples(run)
        with pytest.raises(ConfigError, match="would train steps 1 to"):
            prune(run, 1)
        assert samples(run) == before


def test_a_dry_run_says_the_same_and_deletes_nothing() -> None:
    with recorded_run() as run:
        before = samples(run)
        said = prune(run, 1, is_dry_run=True)
        assert samples(run) == before
        assert [line.replace("would be", "were") for line in said] == prune(run, 1)
        assert len(samples(run)) < len(before)
        assert "nothing to delete" in prune(run, 1)[0]
        steps = [entry.record.version for entry in read_ledger(run.broker, run.topics)]
        assert steps[-1] == 4
