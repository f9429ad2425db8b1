"""Watching a run that others do, and summing it up."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from support.written_run import WrittenRun

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.logs import get_logger
from rollog.run.conclusion import conclude, version_of
from rollog.run.request import RunRequest
from rollog.run.watching import logging_beside, watcher_of
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from consumers.progress import ProgressView

topics = RunTopics("rollog", "first")


def a_run() -> WrittenRun:
    return WrittenRun(MemoryBroker(), topics)


def settings() -> Settings:
    return Settings().changed(run={"name": "first", "num_steps": 2}, weights={"uri": "file:///weights"})


def watched(run: WrittenRun, home: Path, stop: threading.Event) -> ProgressView:
    with watcher_of(settings(), run.broker, home=home, is_terminal=False) as watcher:
        return watcher.run(stop)


def test_a_run_that_is_over_is_told_and_summed_up_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run()
    run.genesis()
    run.step(1, reward=0.25, lags={"0": 2})
    run.step(2, reward=0.5, lags={"1": 2})
    run.close(2, end_offsets=(4, 0))

    view = watched(run, tmp_path, threading.Event())
    (tmp_path / "runs" / "first").mkdir(parents=True)
    options = RunRequest(config=None, home=tmp_path, assignments=(), run="first", broker=None)
    conclude(view, settings(), options, kafka_version=version_of(run.broker))

    told = capsys.readouterr().out
    assert "step 1/2  reward 0.250" in told
    assert "step 2/2  reward 0.500" in told
    assert "run first is over" in told
    assert f"rollog export first --model DIR --home {tmp_path}" in told
    summary = json.loads((tmp_path / "runs" / "first" / "summary.json").read_text())
    assert (summary["closed"], summary["steps"], summary["samples_produced"]) == (True, 2, 4)
    assert summary["samples_by_disposition"] == {"trained": 4}
    assert summary["up_seconds"] is None
    assert summary["wall_seconds"] == view.wall_seconds


def test_a_run_is_watched_until_it_is_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run()
    run.genesis()
    watching = threading.Thread(target=watched, args=(run, tmp_path, threading.Event()))
    watching.start()

    run.step(1, reward=0.25, lags={"0": 2})
    run.close(1, end_offsets=(2, 0))

    watching.join(30)
    assert not watching.is_alive()
    assert "step 1/2" in capsys.readouterr().out


def test_watching_can_be_ended_before_the_run_is(tmp_path: Path) -> None:
    run = a_run()
    run.genesis()
    stop = threading.Event()
    stop.set()

    view = watched(run, tmp_path, stop)

    assert (view.is_closed, view.version) == (False, 0)


def test_a_terminal_that_shows_the_picture_is_not_logged_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, is_terminal in (("picture.log", True), ("lines.log", False)):
        with logging_beside(tmp_path / name, is_terminal=is_terminal):
            get_logger("test").warning("something to tell", where=name)

    assert "where=picture.log" in (tmp_path / "picture.log").read_text()
    told = capsys.readouterr().err
    assert "where=lines.log" in told
    assert "where=picture.log" not in told
