"""What the tests of the worker share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.worker_thread import Stage, a_stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics


@pytest.fixture
def stage(memory_broker: MemoryBroker, run_topics: RunTopics, tmp_path: Path) -> Iterator[Stage]:
    with a_stage(memory_broker, run_topics, tmp_path) as built:
        yield built
