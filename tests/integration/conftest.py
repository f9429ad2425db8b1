"""What the tests of single roles share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.small_training import FakeRun
    from support.terminal import Terminal

    from rollog.kernel.broker.memory import MemoryBroker
    from rollog.kernel.broker.topics import RunTopics


@pytest.fixture
def run(memory_broker: MemoryBroker, run_topics: RunTopics) -> FakeRun:
    """A run with its topics, and nobody in it yet."""
    from support.small_training import FakeRun  # noqa: PLC0415 - it loads torch

    fake = FakeRun(memory_broker, run_topics)
    fake.create_topics()
    return fake


@pytest.fixture
def terminal(tmp_path: Path, cache_directory: Path) -> Iterator[Terminal]:
    """Commands as a person gives them, with a state directory of their own."""
    from support.terminal import Terminal  # noqa: PLC0415 - tests of single roles need none

    made = Terminal(tmp_path, cache_directory)
    yield made
    made.close()
