"""Publishing versions of one size, in a process of its own whose memory counts: trainer's publisher and store are real.

Everything that trains is left out: an engine makes each tensor when it is asked for it, as one comes from a device.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Literal

from benchmarks.harness.peak_memory import peak_bytes, resident_bytes
from benchmarks.weights.elsewhere import Channel, store_elsewhere
from benchmarks.weights.floors import copy_seconds, sha256_seconds, write_seconds
from benchmarks.weights.large_engines import DrawingEngine
from rollog.kernel.weights import WeightsStore
from trainer.publishing import WeightsPublisher

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape
    from schemas import WeightVersion

Form = Literal["full", "patch", "elsewhere"]
"""In full, or as patches, on this disk; in full in a store that is not on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """What to publish: `num_versions` after version 0, of a shape and in one form, below a directory."""

    shape: ModelShape
    form: Form
    num_versions: int
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version: what held training up, what went on beside, and how many bytes were stored."""

    seal_seconds: float
    write_seconds: float
    stored_bytes: int
    is_patch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Of one version: a copy of its bytes, their sha256, and a write of what is stored of it."""

    copy_seconds: float
    sha256_seconds: float
    write_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What all versions but version 0 took, with as many floors, and the most memory that publishing took.

    That is what the process had at most beyond interpreter, libraries and engine.
    """

    num_bytes: int
    memory_bytes: int
    versions: tuple[Published, ...]
    floors: tuple[Floors, ...]


def in_own_process(publishing: Publishing) -> Size:
    """Publish in a process that has done nothing else. Raises what fails there."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(publish, publishing).result()


def publish(publishing: Publishing) -> Size:
    """Publish all versions, keep the newest alone, and measure the floors behind."""
    engine = DrawingEngine(publishing.shape)
    engine.start("none")
    before = resident_bytes()
    store, directory = _store(publishing), publishing.directory
    publisher = WeightsPublisher(store, lambda: "content", patches=publishing.form == "patch")
    try:
        base = publisher.publish(0, engine)
        versions = []
        for number in range(1, publishing.num_versions + 1):
            published, notice = _publish(number, engine, publisher)
            versions.append(published)
            if not published.is_patch:
                _delete(store, base)
                base = notice
        memory = peak_bytes() - before
        floors = tuple(_floors(base.num_bytes, each, directory) for each in versions)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return Size(num_bytes=base.num_bytes, memory_bytes=memory, versions=tuple(versions), floors=floors)


def _store(publishing: Publishing) -> WeightsStore:
    publishing.directory.mkdir(parents=True)
    if publishing.form == "elsewhere":
        return WeightsStore(store_elsewhere(publishing.directory, Channel()))
    return WeightsStore(str(publishing.directory))


def _publish(
    number: int, engine: DrawingEngine, publisher: WeightsPublisher
) -> tuple[Published, WeightVersion]:
    engine.change()
    made_before, began = engine.making_seconds, time.perf_counter()
    sealed = publisher.seal(number, engine)
    sealed_at = time.perf_counter()
    written = publisher.write(sealed)
    published = Published(
        # What the tensors of this engine take is no part of publishing.
        seal_seconds=sealed_at - began - (engine.making_seconds - made_before),
        write_seconds=time.perf_counter() - sealed_at,
        stored_bytes=sum(notice.stored_bytes for notice in written.notices),
        is_patch=written.notice.base is not None,
    )
    return published, written.notice


def _delete(store: WeightsStore, notice: WeightVersion) -> None:
    for name in store.file_names(notice):
        store.delete(name)


def _floors(num_bytes: int, published: Published, directory: Path) -> Floors:
    return Floors(
        copy_seconds=copy_seconds(num_bytes),
        sha256_seconds=sha256_seconds(num_bytes),
        write_seconds=write_seconds(published.stored_bytes, directory / "floor"),
    )
