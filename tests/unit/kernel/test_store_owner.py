"""Whose files a store holds: what a run may delete there, and what it leaves to others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from support.registered_run import a_home, registered, settings_of

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.store_owner import StoreRights, store_rights
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.settings.settings import Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return a_home(tmp_path / "home")


def rights(
    broker: MemoryBroker, settings: Settings, home: Path, *, is_by_content: bool = False
) -> StoreRights:
    topics = RunTopics("rollog", settings.run_name)
    store = WeightsStore(settings.weights.uri or "")
    return store_rights(broker, topics, store, home, is_by_content=is_by_content)


def may(found: StoreRights) -> tuple[bool, bool]:
    return found.may_prune, found.may_sweep


@pytest.mark.parametrize("is_by_content", [False, True])
def test_a_folder_called_after_the_run_is_its_own(home: Path, is_by_content: bool) -> None:
    broker = MemoryBroker()
    registered(broker, settings_of(home))
    registered(broker, settings_of(home, "other"))
    assert may(rights(broker, settings_of(home), home, is_by_content=is_by_content)) == (True, True)


def test_what_another_run_may_have_written_is_not_swept(home: Path) -> None:
    broker, uri = MemoryBroker(), (home / "weights" / "first").as_uri()
    registered(broker, settings_of(home))
    registered(broker, settings_of(home, "other", uri=f"{uri}/"))
    found = rights(broker, settings_of(home), home)
    assert may(found) == (True, False)
    assert "run other names" in found.reason


def test_a_single_file_may_be_anothers_as_well(home: Path) -> None:
    broker, uri = MemoryBroker(), f"memory://{uuid4().hex}/first"
    for run in ("first", "other"):
        registered(broker, settings_of(home, run, uri=uri))
    assert may(rights(broker, settings_of(home, uri=uri), home, is_by_content=True)) == (False, False)


def test_a_store_that_is_not_called_after_the_run_may_have_others_of_other_clusters(home: Path) -> None:
    broker, uri = MemoryBroker(), f"memory://{uuid4().hex}/models"
    registered(broker, settings_of(home, uri=uri))
    assert may(rights(broker, settings_of(home, uri=uri), home)) == (True, False)


def test_a_copied_state_directory_deletes_nothing_of_its_original(home: Path, tmp_path: Path) -> None:
    broker = MemoryBroker()
    settings = settings_of(home)
    registered(broker, settings)
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    assert may(rights(broker, settings, copy)) == (False, False)
    shutil.rmtree(home / "runs" / "first")
    assert rights(broker, settings, copy).may_prune, "the original run is gone"
