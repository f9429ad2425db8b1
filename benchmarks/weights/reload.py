"""What a reload takes: from the notice of a version until it is served, and how long the engine stands still for it.

The run is whole: trainer, store, log, and a worker with its session and its downloads are real. The worker's engine
makes simulated tokens, and copies the tensors of each version out of the worker's files into memory of its own, as one
copies them onto a device. A step is long enough for a version to be served before the next one comes.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.harness.engine_clock import EngineClock
from benchmarks.harness.figures import Figure, mean_figure, ratio_figure
from benchmarks.harness.simulated_run import rollout_of
from benchmarks.harness.workload import tokens_per_second
from benchmarks.weights.elsewhere import Channel, store_elsewhere
from benchmarks.weights.floors import copy_seconds, read_seconds, sha256_seconds
from benchmarks.weights.large_runs import (
    LargeRun,
    Way,
    a_job,
    longest_seconds_of_a_step,
    settling_steps,
)
from producers.engines.changed_tensors import tensor_digests
from producers.engines.mapped_tensors import MappedTensors
from producers.engines.simulated import SimulatedEngine
from rollog.kernel.errors import DataError
from rollog.kernel.versions.files import manifest_at
from schemas import WeightVersion
from schemas.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape
    from benchmarks.harness.variant import Job
    from producers.engines.simulated import Clock, LengthOf
    from producers.rollout.worker import WorkerParts
    from schemas.arrays import UInt8Array

published_seconds: Mapping[str, float] = {"0.1b": 4.0, "0.5b": 12.0}
"""Of a step, by size: more than a version takes to be written, fetched and loaded."""
patched_shares: Mapping[str, float] = {"1e-6": 0.011, "3e-6": 0.031}
"""Of the elements, by learning rate: what changes in one optimizer step, as `--only patches` measures it."""
published_steps = 12
"""Fewer than a period: after version 0 a run that stores patches stores nothing else."""
largest_ratio = 1.3
longest_standstill_seconds = 0.3


@dataclass(slots=True)
class Load:
    """One version in the engine, from `path`.

    Moments are those of the wall clock; `num_read` is what the store has sent by then.
    """

    version: int
    path: Path
    paused_at: float
    copy_seconds: float
    num_read: int
    resumed_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """One version on its way: seconds from its notice until it is served, of the pause, and of the copy in it."""

    notice: WeightVersion
    seconds: float
    pause_seconds: float
    copy_seconds: float
    moved_bytes: int


class CopyingEngine(SimulatedEngine):
    """The simulated engine with memory for tensors; it notes each load."""

    def __init__(self, channel: Channel, clock: Clock, length_of: LengthOf) -> None:
        super().__init__(tokens_per_second=tokens_per_second, clock=clock, length_of=length_of)
        self.loads: list[Load] = []
        self._channel = channel
        self._files = MappedTensors()
        self._memory: dict[str, UInt8Array] = {}
        self._paused_at = 0.0

    async def pause(self) -> None:
        """Note when."""
        self._paused_at = time.time()
        await super().pause()

    async def load_weights(self, path: Path, version: int) -> None:
        """Copy all tensors."""
        await super().load_weights(path, version)
        began = time.perf_counter()
        await asyncio.to_thread(self._copy, path)
        self.loads.append(
            Load(
                version=version,
                path=path,
                paused_at=self._paused_at,
                copy_seconds=time.perf_counter() - began,
                num_read=self._channel.num_read,
            )
        )

    async def resume(self) -> None:
        """Note when."""
        await super().resume()
        self.loads[-1].resumed_at = time.time()

    def _copy(self, path: Path) -> None:
        manifest = manifest_at(path)
        assert manifest is not None, f"{path} is a single file; runs that begin now have manifests"
        with self._files.opened(path, manifest) as read:
            for name, tensor in read(tensor_digests(manifest).keys()):
                data = tensor.view(-1).view(torch.uint8).numpy()
                if name not in self._memory:
                    self._memory[name] = np.empty_like(data)
                np.copyto(self._memory[name], data)


class ReloadRun(LargeRun):
    """A run whose worker has that engine."""

    def __init__(self, job: Job, home: Path, way: Way, channel: Channel) -> None:
        super().__init__(job, home, way)
        self.engine = CopyingEngine(
            channel,
            EngineClock(speed=self._speed),
            lambda request: self._workload.num_tokens(*rollout_of(request)),
        )

    def worker_parts(self, name: str) -> WorkerParts:
        """With the engine that copies."""
        return replace(super().worker_parts(name), engine=self.engine)

    def reloads(self) -> list[Reload]:
        """Of the versions after the first ones. Raises DataError where workers had no copy in shared memory."""
        for load in self.engine.loads:
            if self._home in load.path.parents:
                raise DataError(
                    f"version {load.version} was loaded from {load.path.parent}, a worker's own copy, and not from "
                    "shared memory, as is measured: make room in /dev/shm, or choose smaller --sizes"
                )
        found = []
        notices = self._notices()
        for before, load in pairwise(self.engine.loads):
            if load.version <= settling_steps:
                continue
            notice, at = notices[load.version]
            found.append(
                Reload(
                    notice=notice,
                    seconds=load.resumed_at - at,
                    pause_seconds=load.resumed_at - load.paused_at,
                    copy_seconds=load.copy_seconds,
                    moved_bytes=load.num_read - before.num_read,
                )
            )
        return found

    def _notices(self) -> dict[int, tuple[WeightVersion, float]]:
        """By version, each with the moment at which it was there."""
        found = {}
        for record in self.read(self.topics.weights, 1):
            notice = decode(record.value or b"")
            if isinstance(notice, WeightVersion):
                found[notice.version] = (notice, record.timestamp_ms / 1000)
        return found


def measure_reload(
    *,
    sizes: Mapping[str, ModelShape],
    home: Path,
    seed: int,
    on_progress: Callable[[str], None],
    step_seconds: Mapping[str, float] = published_seconds,
    num_steps: int = published_steps,
) -> list[Figure]:
    """For each size: patches and full forms of a store elsewhere, and full forms of one on the worker's disk."""
    figures = []
    for size, shape in sizes.items():
        ways = {
            f"patch_{rate}": Way(shape=shape, changed=changed) for rate, changed in patched_shares.items()
        }
        ways |= {name: Way(shape=shape, patches=False) for name in ("full", "full_here")}
        for name, way in ways.items():
            channel, store = Channel(), home / secrets.token_hex(4)
            is_here = name == "full_here"
            address = store.resolve().as_uri() if is_here else store_elsewhere(store, channel)
            job = a_job("reload", step_seconds=step_seconds[size], num_steps=num_steps, seed=seed)
            reloads = _reloads(job, home, replace(way, store=address), channel)
            found = figures_of(f"weights.reload.{size}.{name}", reloads, home)
            shutil.rmtree(store)
            for figure in found:
                on_progress(figure.line())
            figures += found
    return figures


def figures_of(stem: str, reloads: list[Reload], home: Path) -> list[Figure]:
    """The figures of one way, each with its floor, which is measured here.

    What a patch changes is a few elements of most pages: a second ratio has one more pass over the memory in its floor.
    """
    num_bytes = reloads[0].notice.num_bytes
    is_patched = reloads[0].notice.base is not None
    pairs = [(each.seconds, _floor(each, home)) for each in reloads]
    return [
        mean_figure(
            f"{stem}.serving",
            "s from the notice until the version is served",
            [each.seconds for each in reloads],
            ideal=fmean(floor for _, floor in pairs),
            higher_is_better=False,
        ),
        ratio_figure(
            f"{stem}.serving_ratio",
            "/ one read of what is moved, sha256 of all bytes, one copy of them",
            pairs,
            target=largest_ratio,
            ideal=1.0,
            higher_is_better=False,
        ),
        *([_ratio_with_write(stem, pairs, num_bytes)] if is_patched else []),
        mean_figure(
            f"{stem}.pause",
            "s in which the engine stands still",
            [each.pause_seconds for each in reloads],
            ideal=fmean(each.copy_seconds for each in reloads),
            higher_is_better=False,
        ),
        mean_figure(
            f"{stem}.beyond_copy",
            "s of the pause beyond the copy into the engine",
            [each.pause_seconds - each.copy_seconds for each in reloads],
            target=longest_standstill_seconds,
            ideal=0.0,
            higher_is_better=False,
        ),
        mean_figure(
            f"{stem}.moved",
            "of the bytes are fetched for a version",
            [each.moved_bytes / num_bytes for each in reloads],
            higher_is_better=False,
        ),
    ]


def _ratio_with_write(stem: str, pairs: list[tuple[float, float]], num_bytes: int) -> Figure:
    return ratio_figure(
        f"{stem}.serving_ratio_with_write",
        "/ the same, and one write of all bytes in memory on all processors",
        [(seconds, floor + copy_seconds(num_bytes)) for seconds, floor in pairs],
        target=largest_ratio,
        ideal=1.0,
        higher_is_better=False,
    )


def _reloads(job: Job, home: Path, way: Way, channel: Channel) -> list[Reload]:
    run = ReloadRun(job, home / secrets.token_hex(4), way, channel)
    try:
        run.create()
        with run.roles():
            run.wait_until_closed(job.variant.num_steps * longest_seconds_of_a_step * job.speed)
        return run.reloads()
    finally:
        run.remove()


def _floor(reload: Reload, home: Path) -> float:
    # A version that is read in place is read once, too.
    read = reload.moved_bytes or reload.notice.num_bytes
    return (
        read_seconds(read, home / "floor")
        + sha256_seconds(reload.notice.num_bytes)
        + copy_seconds(reload.notice.num_bytes, num_threads=1)
    )
