"""What a keeper leaves of versions that are stored as changes of others: each that stays can be rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.exports import export_of
from support.kept_store import KeptRun
from support.patched_versions import are_equal, found_at, publish_versions, versions_of

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.copies import VersionCopy
from rollog.rules.kept_weights import KeepingRule
from schemas import WeightVersion

if TYPE_CHECKING:
    from pathlib import Path

versions = versions_of(9)


@pytest.fixture
def run(tmp_path: Path) -> KeptRun:
    """Versions 0 to 7; 0 and 4 are full."""
    found = KeptRun.at(tmp_path)
    for notice in publish_versions(found.store, versions[:8], full=(0, 4)):
        found.weights[notice.version] = notice.sha256
        found.log.append(notice)
    return found


def notice_of(run: KeptRun, version: int) -> WeightVersion:
    return next(
        each for each in reversed(run.log) if isinstance(each, WeightVersion) and each.version == version
    )


def test_the_chain_below_a_kept_version_stays_to_its_full_form(run: KeptRun, tmp_path: Path) -> None:
    run.look(run.keeper())
    assert run.versions == [0, 4, 5, 6, 7]
    for version in run.versions:
        run.store.check(notice_of(run, version))
        found = run.store.fetch(notice_of(run, version), tmp_path / f"joiner-{version}")
        assert are_equal(found_at(found), versions[version])


def test_a_version_kept_by_wish_keeps_what_it_is_made_of(run: KeptRun) -> None:
    run.rule = KeepingRule(newest=2, every=3)
    run.look(run.keeper())
    assert run.versions == [0, 1, 2, 3, 4, 5, 6, 7], "3 is made of 0, 1 and 2"
    full = run.store.publish_tensors(8, export_of(versions[8]))
    run.weights[8] = full.sha256
    run.log.append(full)
    run.rule = KeepingRule(newest=2, every=5)
    run.look(run.keeper())
    assert run.versions == [0, 4, 5, 6, 7, 8]


def test_who_reads_a_chain_slowly_ends_within_the_grace_and_is_told_after_it(
    run: KeptRun, tmp_path: Path
) -> None:
    run.rule, run.grace_seconds = KeepingRule(newest=2), 100.0
    keeper, reader = run.keeper(), VersionCopy(tmp_path / "reader")
    run.store.bring(notice_of(run, 2), reader)
    full = run.store.publish_tensors(8, export_of(versions[8]))
    run.weights[8] = full.sha256
    run.log.append(full)
    keeper.committed(full)
    run.look(keeper, seconds=95.0)
    assert are_equal(found_at(run.store.bring(notice_of(run, 3), reader)), versions[3])
    run.look(keeper, seconds=10.0)
    assert run.versions == [0, 4, 5, 6, 7, 8]
    late = VersionCopy(tmp_path / "late")
    with pytest.raises(WeightsError, match="check that every role uses the same store"):
        run.store.bring(notice_of(run, 3), late)
    assert are_equal(found_at(run.store.bring(notice_of(run, 7), reader)), versions[7]), "a chain of its own"


def test_a_newest_version_whose_base_is_lost_comes_back_in_full(run: KeptRun, tmp_path: Path) -> None:
    run.rule = KeepingRule()
    run.store.delete(run.store.file_names(notice_of(run, 5))[0])
    newest = notice_of(run, 7)
    assert not run.store.has(newest)
    run.weights_of = lambda version: export_of(versions[version])
    run.look(run.keeper(), is_idle=True)
    again = run.newest_notice
    assert (again.sha256, again.base) == (newest.sha256, None)
    assert are_equal(found_at(run.store.fetch(again, tmp_path / "joiner")), versions[7])
