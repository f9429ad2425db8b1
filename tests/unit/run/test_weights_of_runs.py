"""`rollog weights`: what is listed and found wrong, and what is let go of a run that nobody works for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.recorded_run import a_manifest_of, recorded_run, store_of
from support.simulated_plan import Plan

from consumers.audit.auditor import audit_run
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.errors import ConfigError, Superseded
from rollog.kernel.weights import WeightsStore
from rollog.run.recorded_run import RecordedRun
from rollog.run.stored_weights import StoredState, check_weights, list_weights, weights_table
from rollog.run.weights_pruning import WeightsPruning, prune_weights
from rollog.settings.settings import Settings
from schemas import RoleStatus, RunRole, WeightsPruned, WeightVersion
from schemas.codec import decode, encode
from trainer.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.simulated_run import SimulatedRun


@pytest.fixture
def made() -> Iterator[SimulatedRun]:
    """Versions 0 to 6, closed."""
    with recorded_run(Plan(num_steps=6)) as run:
        yield run


@pytest.fixture
def run(made: SimulatedRun) -> RecordedRun:
    manifest = a_manifest_of(made)
    return RecordedRun(
        broker=made.broker,
        topics=made.topics,
        store=store_of(made),
        settings=Settings.from_manifest(manifest.config_json),
        manifest=manifest,
        is_archive=False,
    )


def log(run: RecordedRun) -> list[WeightVersion | WeightsPruned]:
    with run.broker.consumer(client_id="test") as consumer:
        found = [decode(each.value or b"") for each in read_to_end(consumer, run.topics.weights, 0)]
    return [each for each in found if isinstance(each, WeightVersion | WeightsPruned)]


def notice_of(run: RecordedRun, version: int) -> WeightVersion:
    return next(each for each in log(run) if isinstance(each, WeightVersion) and each.version == version)


def pruned(run: RecordedRun) -> list[WeightsPruned]:
    return [each for each in log(run) if isinstance(each, WeightsPruned)]


def prune(run: RecordedRun, home: Path) -> list[str]:
    return list(prune_weights(run, home, keep_newest=2, sleep=lambda _: None))


def states(run: RecordedRun) -> dict[int, StoredState]:
    return {each.version: each.state for each in list_weights(run)}


def faults(run: RecordedRun) -> dict[int, str]:
    return {each.version: each.fault for each in check_weights(run) if each.fault is not None}


def test_a_version_that_is_gone_and_one_that_was_altered_are_told(run: RecordedRun) -> None:
    assert set(states(run).values()) == {StoredState.HERE}
    assert faults(run) == {}
    fs, root = run.store.filesystem
    shard = f"{root}/{run.store.file_names(notice_of(run, 2))[0]}"
    data = bytearray(fs.cat_file(shard))
    data[-1] ^= 1
    fs.pipe_file(shard, bytes(data))
    run.store.delete(notice_of(run, 4).name)
    found = faults(run)
    assert sorted(found) == [2, 4]
    assert "are not in" in found[4]
    assert {version for version, state in states(run).items() if state is StoredState.MISSING} == {4}


def test_the_table_says_form_bytes_and_state(run: RecordedRun, tmp_path: Path) -> None:
    prune(run, tmp_path)
    table = weights_table(list_weights(run))
    assert table[0].split() == ["version", "form", "bytes", "state"]
    notice = notice_of(run, 6)
    assert table[7].split() == ["6", "full", str(notice.stored_bytes), "in", "the", "store"]
    assert table[2].split()[-1] == "pruned"


def test_what_goes_is_on_the_log_and_the_audit_tells_it_from_what_is_lost(
    run: RecordedRun, tmp_path: Path
) -> None:
    planned = WeightsPruning.of(run, tmp_path, keep_newest=2)
    gone = planned.versions
    assert gone[0] == 1
    assert not {0, 5, 6} & set(gone)
    assert log(run)[-1] == notice_of(run, 6), "nothing is changed by looking"
    assert f"versions that go: 1-{gone[-1]}" in planned.lines()
    said = prune(run, tmp_path)
    assert f"1-{gone[-1]}" in said[1]
    assert pruned(run) == [WeightsPruned(versions=tuple(gone))]
    assert {version for version, state in states(run).items() if state is StoredState.PRUNED} == set(gone)
    assert faults(run) == {}
    report = audit_run(run.broker, run.topics, run.store)
    assert report.is_clean
    assert any("which the run let go" in line for line in report.lines())
    assert not WeightsPruning.of(run, tmp_path, keep_newest=2).has_work()


def test_a_prune_that_ended_after_its_record_is_finished_by_the_next(
    run: RecordedRun, tmp_path: Path
) -> None:
    steps = prune_weights(run, tmp_path, keep_newest=2, sleep=lambda _: None)
    next(steps)
    next(steps)
    del steps
    left = [version for version, state in states(run).items() if state is StoredState.LEFT]
    assert left == list(pruned(run)[0].versions)
    prune(run, tmp_path)
    assert len(pruned(run)) == 1
    assert StoredState.LEFT not in states(run).values()


def test_files_that_no_notice_names_go_and_those_of_others_stay(run: RecordedRun, tmp_path: Path) -> None:
    notice = notice_of(run, 6)
    fs, root = run.store.filesystem
    orphan = f"v000007-{0:016x}.manifest"
    fs.pipe_file(f"{root}/{orphan}", fs.cat_file(f"{root}/{notice.name}"))
    fs.pipe_file(f"{root}/notes.txt", b"mine")
    prune(run, tmp_path)
    assert orphan not in run.store.names()
    assert fs.exists(f"{root}/notes.txt")


def test_a_run_that_somebody_works_for_is_not_pruned(
    run: RecordedRun, made: SimulatedRun, tmp_path: Path
) -> None:
    def beat(_: float) -> None:
        status = RoleStatus(role=RunRole.TRAINER, role_id="t")
        made.hand.send(run.topics.workers, 0, encode(status), key=b"trainer")
        made.hand.flush(10.0)

    names = run.store.names()
    with pytest.raises(ConfigError, match="is not pruned: 1 heartbeats"):
        list(prune_weights(run, tmp_path, keep_newest=2, sleep=beat))
    assert (run.store.names(), pruned(run)) == (names, [])


def test_a_run_that_keeps_all_is_pruned_by_no_rule(run: RecordedRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keeps all versions"):
        WeightsPruning.of(run, tmp_path)


def test_who_is_replaced_before_the_record_deletes_nothing(run: RecordedRun, tmp_path: Path) -> None:
    names = run.store.names()
    steps = prune_weights(run, tmp_path, keep_newest=2, sleep=lambda _: None)
    next(steps)
    with (
        LedgerWriter(run.broker, run.topics, transaction_timeout_seconds=10.0, max_record_bytes=1 << 20),
        pytest.raises(Superseded),
    ):
        list(steps)
    assert (run.store.names(), pruned(run)) == (names, [])


def test_a_trainer_that_was_suspended_is_fenced(run: RecordedRun, tmp_path: Path) -> None:
    with LedgerWriter(
        run.broker, run.topics, transaction_timeout_seconds=10.0, max_record_bytes=1 << 20
    ) as suspended:
        prune(run, tmp_path)
        with pytest.raises(Superseded):
            suspended.announce(notice_of(run, 6))


def test_weights_of_the_state_directory_that_this_one_was_copied_from_stay(
    run: RecordedRun, tmp_path: Path
) -> None:
    original = tmp_path / "original"
    (original / "runs" / run.topics.run).mkdir(parents=True)
    copied = replace(run, store=WeightsStore(str(original / "weights" / run.topics.run)))
    with pytest.raises(ConfigError, match="from which this one was copied"):
        WeightsPruning.of(copied, tmp_path / "copy", keep_newest=2)
