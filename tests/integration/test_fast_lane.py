"""A run whose trainer and worker share memory, with a store elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import pytest
from support.counted_store import CountedFiles
from support.threaded_run import small_settings, whole_run

from rollog.kernel.versions.manifest import version_of

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics

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
