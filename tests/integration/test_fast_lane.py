"""A run whose trainer and worker share memory, with a store elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import fsspec
import pytest
from support.counted_store import CountedFiles
from support.threaded_run import small_settings, whole_run

from rollog.kernel.versions import copies
from rollog.kernel.versions.manifest import version_of
from rollog.kernel.versions.reading import download_patch

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.store_folder import StoreFolder
    from rollog.kernel.versions.patch_manifest import PatchManifest

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_worker_reads_what_its_trainer_publishes_beside_it_in_shared_memory(
    memory_broker: MemoryBroker, run_topics: RunTopics, tmp_path: Path, is_shared: bool
) -> None:
    fsspec.register_implementation("counted", CountedFiles, clobber=True)
    files, place = CountedFiles(), tmp_path / "shm"
    place.mkdir()
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 4},
        model={"dtype": "bfloat16"},
        optimizer={"learning_rate": 1e-5},
        weights={"uri": f"counted:/{files.root}", "lane": str(place) if is_shared else "off"},
    )
    with whole_run(memory_broker, tmp_path, settings) as run:
        run.to_its_end()
        # It began when version 0 was published: before, nobody was there to share memory with.
        of_versions = {version_of(name) for name in files.read}
        assert (of_versions <= {0}) if is_shared else (of_versions > {0})
        run.audited()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("is_shared", [True, False])
def test_two_workers_of_a_machine_take_each_version_once(
    memory_broker: MemoryBroker,
    run_topics: RunTopics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_shared: bool,
) -> None:
    place, taken = tmp_path / "shm", Counter[int]()
    place.mkdir()

    def counted(folder: StoreFolder, patch: PatchManifest, directory: Path) -> None:
        taken[version_of(patch.shards[0].name)] += 1
        download_patch(folder, patch, directory)

    monkeypatch.setattr(copies, "download_patch", counted)
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 6},
        model={"dtype": "bfloat16"},
        optimizer={"learning_rate": 1e-5},
        weights={"lane": str(place) if is_shared else "off"},
    )
    with whole_run(memory_broker, tmp_path, settings) as run:
        run.trainer()
        for num_workers in (1, 2):
            run.worker()
            run.wait_for_serving(num_workers)
        run.dispatcher()
        run.wait_until_closed()
        assert taken
        assert max(taken.values()) == (1 if is_shared else 2)
        run.audited()
    assert list(place.iterdir()) == []
