"""The trainer's housekeeping in the weights store, driven by hand; it dies between any two of its effects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.kept_store import Died, KeptRun, tensors_of

from rollog.kernel.errors import LedgerError, Superseded
from rollog.kernel.store_owner import StoreRights
from rollog.rules.kept_weights import KeepingRule
from schemas import WeightsBase, WeightsPruned
from trainer.published_again import is_whole

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> KeptRun:
    found = KeptRun.at(tmp_path)
    found.commit_all(*range(6))
    return found


def test_what_the_rule_lets_go_is_named_before_its_files_are_deleted(run: KeptRun) -> None:
    keeper = run.keeper()
    seen: list[list[int]] = []
    run.before_commit = lambda: seen.append(run.versions)
    run.look(keeper)
    assert run.log[-1] == WeightsPruned(versions=(1, 2, 3))
    assert seen == [[0, 1, 2, 3, 4, 5]]
    assert run.versions == [0, 4, 5]
    assert len(run.store.names()) == 3 * 4
    run.commit(6, keeper)
    run.look(keeper)
    assert (run.log[-1], run.versions) == (WeightsPruned(versions=(4,)), [0, 5, 6])


def test_without_a_rule_all_stay_whoever_says_that_they_are_pruned(run: KeptRun) -> None:
    run.rule = KeepingRule()
    run.log.append(WeightsPruned(versions=(1, 2)))
    run.look(run.keeper())
    assert run.versions == [0, 1, 2, 3, 4, 5]


def test_what_the_rule_names_stays_whoever_says_that_it_is_pruned(run: KeptRun) -> None:
    run.log.append(WeightsPruned(versions=(1, 4)))
    run.look(run.keeper())
    assert run.versions == [0, 4, 5]


def test_killed_between_the_commit_and_the_deletion_the_next_one_deletes(run: KeptRun) -> None:
    run.dies_after_commit = True
    with pytest.raises(Died):
        run.look(run.keeper())
    assert run.versions == [0, 1, 2, 3, 4, 5]
    run.dies_after_commit = False
    run.look(run.keeper())
    assert run.versions == [0, 4, 5]
    assert [each for each in run.log if isinstance(each, WeightsPruned)] == [
        WeightsPruned(versions=(1, 2, 3))
    ]


@pytest.mark.parametrize("num_deleted", range(12))
def test_killed_after_any_deletion_the_next_one_deletes_the_rest(run: KeptRun, num_deleted: int) -> None:
    num_before = len(run.store.names())
    run.store.deletions_left = num_deleted
    with pytest.raises(Died):
        run.look(run.keeper())
    assert len(run.store.names()) == num_before - num_deleted
    run.store.deletions_left = None
    run.look(run.keeper())
    assert run.versions == [0, 4, 5]
    assert sum(isinstance(each, WeightsPruned) for each in run.log) == 1


def test_whose_commit_fails_deletes_nothing(run: KeptRun) -> None:
    orphan = run.stored(6)
    keeper = run.keeper()
    run.fencing = Superseded("another trainer")
    with pytest.raises(Superseded):
        run.look(keeper)
    assert run.versions == [0, 1, 2, 3, 4, 5, 6]
    run.rule = KeepingRule()
    later = run.keeper()
    for _ in range(3):
        run.look(later)
    assert orphan.name in run.store.names(), "nothing was committed since the store was listed"


def test_a_slow_reader_has_the_time_of_grace_from_when_the_next_version_was_committed(run: KeptRun) -> None:
    run.grace_seconds = 100.0
    keeper = run.keeper()
    run.look(keeper, seconds=90.0)
    run.commit(6, keeper)
    run.look(keeper, seconds=5.0)
    assert run.versions == [0, 1, 2, 3, 4, 5, 6], "counted anew from the start"
    run.look(keeper, seconds=10.0)
    assert run.versions == [0, 5, 6]
    run.commit(7, keeper)
    run.look(keeper, seconds=80.0)
    assert run.versions == [0, 5, 6, 7], "5 was superseded 90 seconds ago"
    run.look(keeper, seconds=20.0)
    assert run.versions == [0, 6, 7]


def test_checkpoints_hold_their_versions_until_they_are_gone(run: KeptRun) -> None:
    run.checkpoints = {2, 3}
    keeper = run.keeper()
    run.look(keeper)
    assert run.versions == [0, 2, 3, 4, 5]
    run.checkpoints = {3}
    run.look(keeper)
    assert run.versions == [0, 3, 4, 5]


def test_what_a_kept_version_is_stored_as_changes_of_stays_with_all_its_forms(run: KeptRun) -> None:
    for version in (4, 3):
        number = next(n for n, each in enumerate(run.log) if each == run.log[version])
        notice = run.log[number]
        assert not isinstance(notice, WeightsPruned)
        run.log[number] = replace(
            notice, base=WeightsBase(version=version - 1, sha256=run.weights[version - 1])
        )
    again = run.stored(3)
    run.log.append(again)
    run.look(run.keeper())
    assert run.versions == [0, 2, 3, 4, 5], "4 may lead to the form of 3 that is a patch of 2"
    assert run.log[-1] == WeightsPruned(versions=(1,))


def test_files_of_dead_attempts_go_after_a_listing_and_a_commit(run: KeptRun) -> None:
    run.rule = KeepingRule()
    orphan, keeper = run.stored(6), run.keeper()
    partial = run.path(".partial-0123456789abcdef")
    partial.write_bytes(b"half")
    (run.path("notes.txt").write_bytes(b"mine"))
    run.look(keeper)
    committed = run.commit(6, keeper)
    late = run.stored(6)
    run.look(keeper)
    names = run.store.names()
    assert orphan.name not in names
    assert not any(name.startswith(orphan.name.split(".")[0]) for name in names), "its shards are gone, too"
    assert {committed.name, late.name} <= set(names), "what came after the listing waits for the next one"
    assert not partial.exists()
    assert run.path("notes.txt").exists()
    run.look(keeper, seconds=700.0)
    keeper.committed()
    run.look(keeper)
    assert late.name not in run.store.names()


def test_what_was_committed_after_the_listing_is_no_orphan(run: KeptRun) -> None:
    run.rule = KeepingRule()
    written, keeper = run.stored(6), run.keeper()
    run.look(keeper)
    run.weights[6] = written.sha256
    keeper.committed(written)
    run.look(keeper)
    assert set(run.store.belonging([written.name])) <= set(run.store.names())
    assert len(run.store.belonging([written.name])) == 4


def test_at_the_close_what_nobody_names_is_swept_once_more(run: KeptRun) -> None:
    run.rule = KeepingRule()
    orphan, keeper = run.stored(6), run.keeper()
    with keeper.last_sweep():
        keeper.committed()
    assert orphan.name not in run.store.names()


@pytest.mark.parametrize("is_unreadable", [False, True])
def test_files_stay_where_others_may_name_them(run: KeptRun, is_unreadable: bool) -> None:
    run.rule = KeepingRule()
    orphan = run.stored(6)
    if not is_unreadable:
        run.rights = StoreRights(may_prune=True, may_sweep=False, reason="another run names it, too")
    run.num_unreadable = int(is_unreadable)
    keeper = run.keeper()
    run.look(keeper)
    keeper.committed()
    run.look(keeper)
    assert orphan.name in run.store.names()


def test_a_copy_of_a_state_directory_lets_nothing_of_its_original_go(run: KeptRun) -> None:
    run.rights = StoreRights(may_prune=False, may_sweep=False, reason="a copy")
    run.look(run.keeper())
    assert run.versions == [0, 1, 2, 3, 4, 5]
    assert not any(isinstance(each, WeightsPruned) for each in run.log)


def test_a_single_file_that_a_trainer_may_make_again_is_no_orphan_yet(tmp_path: Path) -> None:
    run = KeptRun.at(tmp_path)
    run.is_by_content, run.rule = True, KeepingRule()
    run.commit_all(0, 1)
    other = run.store.publish(1, tensors_of(77))
    ahead, keeper = run.stored(2), run.keeper()
    run.look(keeper)
    keeper.committed()
    run.look(keeper)
    assert other.name not in run.store.names()
    assert ahead.name in run.store.names(), "the next trainer may commit it under the same name"


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_newest_version_that_is_lost_or_cut_is_published_again(run: KeptRun, is_cut: bool) -> None:
    newest, keeper = run.newest_notice, run.keeper()
    shard = run.path(run.store.file_names(newest)[0])
    if is_cut:
        shard.write_bytes(shard.read_bytes()[:-1])
    else:
        shard.unlink()
    run.look(keeper)
    assert run.newest_notice == newest, "the engine may be ahead"
    run.look(keeper, is_idle=True, seconds=40.0)
    again = run.newest_notice
    assert (again.version, again.sha256, again.name == newest.name) == (5, newest.sha256, False)
    run.store.check(again)
    num_records = len(run.log)
    run.look(keeper, is_idle=True, seconds=40.0)
    assert len(run.log) == num_records, "it is whole now"


def test_a_trainer_that_is_ahead_bases_nothing_on_a_newest_version_that_is_lost(run: KeptRun) -> None:
    keeper = run.keeper()
    run.look(keeper)
    assert run.num_bases_forgotten == 0
    run.path(run.store.file_names(run.newest_notice)[0]).unlink()
    run.look(keeper, seconds=40.0)
    assert run.num_bases_forgotten == 1


def test_a_store_that_takes_nothing_is_waited_for(run: KeptRun) -> None:
    run.rule = KeepingRule()
    newest, keeper = run.newest_notice, run.keeper()
    place = run.path("")
    place.rename(place.with_name("away"))
    place.write_text("in the way")
    run.look(keeper, is_idle=True)
    assert run.newest_notice == newest
    place.unlink()
    place.with_name("away").rename(place)
    run.path(newest.name).unlink()
    run.look(keeper, is_idle=True, seconds=40.0)
    run.store.check(run.newest_notice)
    assert run.newest_notice != newest


def test_nothing_is_written_where_the_whole_directory_is_away(run: KeptRun) -> None:
    run.rule = KeepingRule()
    newest, keeper, place = run.newest_notice, run.keeper(), run.path("")
    place.rename(place.with_name("away"))
    run.look(keeper, is_idle=True)
    assert not place.exists()
    place.with_name("away").rename(place)
    run.look(keeper, is_idle=True, seconds=40.0)
    assert run.newest_notice == newest
    run.store.check(newest)


def test_a_disk_that_will_soon_be_full_is_told_once(run: KeptRun, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[int]:
        fields = (vars(line)["event_fields"] for line in caplog.records if "little room" in line.message)
        return [each["room_for_versions"] for each in fields]

    run.rule = KeepingRule()
    keeper, version_bytes = run.keeper(), run.newest_notice.num_bytes
    run.commit(6, keeper)
    assert said() == []
    run.free_bytes = 3 * version_bytes - 1
    run.commit(7, keeper)
    run.commit(8, keeper)
    assert said() == [2]
    run.free_bytes = 3 * version_bytes
    run.commit(9, keeper)
    run.free_bytes = 0
    run.commit(10, keeper)
    assert said() == [2, 0]


def test_a_damaged_single_file_is_made_again_under_its_name(tmp_path: Path) -> None:
    run = KeptRun.at(tmp_path)
    run.is_by_content, run.rule = True, KeepingRule()
    run.commit_all(0, 1)
    newest = run.newest_notice
    path = run.path(newest.name)
    path.write_bytes(path.read_bytes()[:-1])
    run.look(run.keeper(), is_idle=True)
    run.store.check(newest)
    assert len(run.log) == 2


def test_an_engine_with_other_weights_mends_nothing(run: KeptRun) -> None:
    newest = run.newest_notice
    run.rule = KeepingRule()
    run.store.delete(newest.name)
    run.log[-1] = replace(newest, sha256="0" * 64)
    run.weights[5] = "0" * 64
    keeper = run.keeper()
    with pytest.raises(LedgerError, match="the engine has other weights"):
        run.look(keeper, is_idle=True)
    assert run.newest_notice.sha256 == "0" * 64


def test_bytes_that_were_altered_are_found_at_the_start_by_reading_them(run: KeptRun) -> None:
    newest = run.newest_notice
    assert is_whole(run.store, newest)
    shard = run.path(run.store.file_names(newest)[0])
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert run.store.has(newest)
    assert not is_whole(run.store, newest)
