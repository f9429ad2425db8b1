"""A registered run in a state directory of its own: one version in its store, a summary, and empty topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.weights import WeightsStore
from rollog.run.creation import create_run
from rollog.settings.settings import Settings
from support.written_run import WrittenRun

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker


def settings_of(home: Path, run: str = "first", *, uri: str | None = None) -> Settings:
    """Those of a run whose weights are in its folder of the state directory, or at `uri`."""
    return Settings().changed(
        run={"name": run, "num_steps": 2},
        weights={"uri": uri or (home / "weights" / run).as_uri()},
        model={"path": str(home / "cache" / "model")},
        data={"train": "/data/train.jsonl"},
        broker={"samples_partitions": 2, "max_workers": 2},
    )


def a_home(home: Path) -> Path:
    """A state directory with files of the run `first`."""
    (home / "cache" / "model").mkdir(parents=True)
    (home / "runs" / "first").mkdir(parents=True)
    (home / "runs" / "first" / "summary.json").write_text("{}" * 500)
    WeightsStore(str(home / "weights" / "first")).publish(0, b"weights")
    return home


def registered(broker: Broker, settings: Settings) -> WrittenRun:
    """Create the run, with nothing on its topics."""
    create_run(broker, settings)
    return WrittenRun(broker, RunTopics("rollog", settings.run_name), settings.to_manifest())


def published(run: WrittenRun, uri: str, version: int, data: bytes) -> str:
    """Publish a version in a store and notice it on the run's topic; returns the name of its file."""
    notice = WeightsStore(uri).publish(version, data)
    run.write(run.topics.weights, notice)
    return notice.name
