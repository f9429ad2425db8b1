"""One run of the demo under `rollog up`, in which trainer, worker and broker die at chosen steps."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.chaos.kills import Role, kill_role
from benchmarks.harness.demo_run import appended, prefix, set_options
from consumers.progress import RunProgress
from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import BrokerError, ChildFailed
from rollog.run.connection import cache_directory, data_directory
from schemas import LedgerRecord, Step
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from consumers.progress import ProgressView

_tick_seconds = 0.1
_start_seconds = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledDemo:
    """Seconds since the first step at which steps were committed and processes killed, by this machine's clock."""

    rewards: tuple[tuple[float, float], ...]
    kills: tuple[tuple[float, str], ...]
    views: tuple[tuple[str, ProgressView, float], ...]


def killed_demo(
    home: Path, run: str, kills: Mapping[int, Role], seed: int, on_progress: Callable[[str], None]
) -> KilledDemo:
    """Run the demo and kill each role when the step of that number is committed.

    Raises ChildFailed when the run does not end by itself with status 0.
    """
    views: list[tuple[str, ProgressView, float]] = []
    happened: list[tuple[float, str]] = []
    due = dict(kills)
    with _up(home, run, seed) as process:
        begin = time.monotonic()
        address = _address(home, process)
        with _progress(address, run) as progress:
            while process.poll() is None:
                time.sleep(_tick_seconds)
                try:
                    view = progress.poll()
                except BrokerError:
                    continue
                _keep(views, view, time.monotonic() - begin)
                if view.version in due and kill_role(process.pid, due[view.version]):
                    role = due.pop(view.version)
                    happened.append((time.time(), role.value))
                    on_progress(f"step {view.version}: {role.value} killed")
        if process.returncode:
            raise ChildFailed(f"run {run} ended with status {process.returncode}")
    return _told(home, run, happened, views)


@contextmanager
def _up(home: Path, run: str, seed: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rollog.cli.main", "up", "--plain", "--home", str(home), "--run", run]
    command += set_options({"run.seed": seed, "run.num_steps": 40, "trainer.checkpoint_every_steps": 5})
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _address(home: Path, process: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + _start_seconds
    while time.monotonic() < deadline and process.poll() is None:
        address = EmbeddedKafka.running(data_directory(home))
        if address is not None:
            return address
        time.sleep(_tick_seconds)
    raise ChildFailed("the broker did not start")


@contextmanager
def _progress(address: str, run: str) -> Iterator[RunProgress]:
    """Follows the run from when its topics are there."""
    deadline = time.monotonic() + _start_seconds
    with ExitStack() as opened:
        while True:
            try:
                progress = opened.enter_context(RunProgress(KafkaBroker(address), RunTopics(prefix, run)))
            except BrokerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_tick_seconds)
            else:
                yield progress
                return


def _keep(views: list[tuple[str, ProgressView, float]], view: ProgressView, seconds: float) -> None:
    """Keep the first view of each kind that is to be drawn."""
    is_missing = view.version > 0 and not view.is_closed and "no " in view.standing_still
    kinds = {
        "start": view.version < 0 and bool(view.workers),
        "middle": view.version >= 10,  # noqa: PLR2004 - well into the run
        "missing": is_missing,
        "end": view.is_closed,
    }
    known = {kind for kind, _, _ in views}
    views += [(kind, view, seconds) for kind, holds in kinds.items() if holds and kind not in known]


def _told(
    home: Path, run: str, happened: list[tuple[float, str]], views: list[tuple[str, ProgressView, float]]
) -> KilledDemo:
    topics = RunTopics(prefix, run)
    with EmbeddedKafka(data_directory(home), cache_directory(home)) as kafka:
        records = [
            (decode_as(LedgerRecord, value), at)
            for value, at in appended(KafkaBroker(kafka.address), topics.steps)
        ]
    steps = [(at, record.body.reward_mean) for record, at in records if isinstance(record.body, Step)]
    first = steps[0][0]
    return KilledDemo(
        rewards=tuple((at - first, reward) for at, reward in steps),
        kills=tuple((at - first, name) for at, name in happened),
        views=tuple(views),
    )
