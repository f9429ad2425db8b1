"""A trainer that waits for a weights store which does not answer, and is told to stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.threaded_run import small_settings
from support.waiting import wait_until

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.errors import WeightsStoreSilent
from rollog.kernel.metrics import Metrics
from rollog.run.creation import create_run
from rollog.run.role_settings import trainer_settings
from trainer.role import run_trainer

if TYPE_CHECKING:
    from pathlib import Path

wait_seconds = 600.0


class SilentFileSystem(MemoryFileSystem):  # type: ignore[misc]  # the library is untyped
    """A store that takes no file."""

    protocol = "silent"
    asked = threading.Event()

    def pipe_file(self, *_: object, **__: object) -> None:
        self.asked.set()
        raise ConnectionError("nobody answers")


fsspec.register_implementation("silent", SilentFileSystem, clobber=True)


@pytest.mark.parametrize("is_told_to_stop", [True, False])
def test_a_trainer_that_waits_for_a_silent_store_leaves_when_it_is_told_to(
    tmp_path: Path, is_told_to_stop: bool
) -> None:
    SilentFileSystem.asked.clear()
    broker = MemoryBroker()
    settings = small_settings(
        tmp_path,
        "silent",
        weights={"uri": "silent://store/run", "wait_seconds": wait_seconds if is_told_to_stop else 0.0},
        trainer={"engine": "torch"},
    )
    manifest = create_run(broker, settings)
    stop, errors = threading.Event(), list[BaseException]()

    def train() -> None:
        try:
            run_trainer(trainer_settings(settings, manifest, tmp_path), broker, Metrics(), stop)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    role = threading.Thread(target=train)
    role.start()
    assert SilentFileSystem.asked.wait(60)
    if is_told_to_stop:
        stop.set()
    role.join(wait_seconds / 10)
    assert not role.is_alive()
    if is_told_to_stop:
        assert errors == []
    else:
        wait_until(lambda: errors, 5, "the error")
        assert isinstance(errors[0], WeightsStoreSilent)
