"""How long vLLM stands still for a new version, with the store and the downloads of a worker.

The model has random weights. Nothing is generated meanwhile. Versions come from a store elsewhere to a copy in shared
memory, in full: how they are stored changes nothing of the pause, for what is loaded is always all of the copy.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness.figures import Figure, mean_figure, ratio_figure
from benchmarks.harness.random_model import write_random_model
from benchmarks.weights.elsewhere import Channel, store_elsewhere
from benchmarks.weights.floors import copy_seconds
from benchmarks.weights.large_engines import changed_share
from benchmarks.weights.reload import longest_standstill_seconds
from producers.engines.vllm import VllmEngine
from producers.rollout.downloads import Downloads
from rollog.kernel.errors import DataError
from rollog.kernel.shared_memory import WorkerPresence, free_memory_bytes, shared_directory
from rollog.kernel.versions.shared_copy import SharedCopy
from rollog.kernel.versions.tensors import TensorSpec, file_order
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape
    from producers.engines.ports import Engine
    from rollog.kernel.versions.tensors import TensorSink

published_versions = 6
_settling_loads = 2
"""The second one maps the files that are read from then on."""
_context_tokens = 128
_capacity = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One version: seconds in which the engine stood still, and those of a copy of the bytes."""

    seconds: float
    copy_seconds: float


class StoredModel:
    """The tensors of a model's safetensors file in bfloat16, of which a few elements change."""

    def __init__(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        header.pop("__metadata__", None)
        self._elements = np.frombuffer(data, dtype=np.uint16, offset=begin)
        self._tensors = {
            TensorSpec(name, entry["dtype"], tuple(entry["shape"])): memoryview(data)[
                slice(*(begin + offset for offset in entry["data_offsets"]))
            ]
            for name, entry in header.items()
        }
        self._draw = np.random.default_rng(0)

    def change(self) -> None:
        """Move some elements to a neighbouring value."""
        size = self._elements.size
        self._elements[self._draw.integers(0, size, int(changed_share * size))] ^= 1

    def export(self, sink: TensorSink) -> None:
        """Hand all tensors over."""
        table = file_order(list(self._tensors))
        sink.begin(table)
        for spec in table:
            sink.add(spec, self._tensors[spec])


def measure_vllm_reload(
    *,
    name: str,
    shape: ModelShape,
    home: Path,
    seed: int,
    on_progress: Callable[[str], None],
    num_versions: int = published_versions,
) -> list[Figure]:
    """All figures of a model of that name and shape. Raises ConfigError where vLLM is not installed."""
    model = home / "model"
    model.mkdir()
    num_parameters = write_random_model(
        model, shape, dtype="bfloat16", max_context_tokens=_context_tokens, seed=seed
    )
    on_progress(f"vLLM with {num_parameters / 1e6:.0f} million random parameters")
    engine = VllmEngine(
        str(model),
        dtype="bfloat16",
        max_context_tokens=_context_tokens,
        capacity=_capacity,
        home=home,
    )
    began = time.monotonic()
    pauses = asyncio.run(pauses_of(engine, model / "model.safetensors", home, num_versions))
    on_progress(f"{time.monotonic() - began:.0f} s for its start and {num_versions} versions")
    return figures_of(f"weights.vllm_reload.{name}", pauses)


async def pauses_of(
    engine: Engine,
    model: Path,
    home: Path,
    num_versions: int,
    *,
    free_bytes: Callable[[Path], int] = free_memory_bytes,
) -> list[Pause]:
    """Publish versions of a model, and load each as a worker does; the first loads are not measured.

    `free_bytes` tells the room in shared memory. Raises DataError where a version has none.
    """
    store = WeightsStore(store_elsewhere(home / "weights", Channel()))
    shared = shared_directory("auto", "vllm_reload", secrets.token_hex(4), store.uri)
    if shared is None:
        raise DataError(
            "this machine has no shared memory, where workers have their copy: run it where /dev/shm is"
        )
    stored, pauses = StoredModel(model), []
    with WorkerPresence(shared):
        async with (
            _started(engine),
            _downloads(store, home, SharedCopy(shared, free_bytes=free_bytes)) as downloads,
        ):
            for version in range(_settling_loads + num_versions):
                notice = store.publish_tensors(version, stored.export)
                await downloads.fetch(notice)
                if shared not in downloads.path.parents:
                    raise DataError(
                        f"version {version} is in {downloads.path.parent}, and not in shared memory, as is measured: "
                        "make room in /dev/shm"
                    )
                seconds = await _seconds_of_a_load(engine, downloads.path, version)
                downloads.loaded()
                for name in store.file_names(notice):
                    store.delete(name)
                if version >= _settling_loads:
                    copied = copy_seconds(notice.num_bytes, num_threads=1)
                    pauses.append(Pause(seconds=seconds, copy_seconds=copied))
                stored.change()
    return pauses


async def _seconds_of_a_load(engine: Engine, path: Path, version: int) -> float:
    began = time.perf_counter()
    await engine.pause()
    await engine.load_weights(path, version)
    await engine.resume()
    return time.perf_counter() - began


@asynccontextmanager
async def _downloads(store: WeightsStore, home: Path, copy: SharedCopy) -> AsyncIterator[Downloads]:
    downloads = Downloads(store, home / "downloads" / "worker", copy)
    try:
        yield downloads
    finally:
        await downloads.close()


@asynccontextmanager
async def _started(engine: Engine) -> AsyncIterator[None]:
    try:
        await engine.start()
        yield
    finally:
        await engine.close()


def figures_of(stem: str, pauses: list[Pause]) -> list[Figure]:
    """The pause, and what of it is beyond a copy of the bytes."""
    return [
        mean_figure(
            f"{stem}.pause",
            "s in which vLLM stands still",
            [each.seconds for each in pauses],
            ideal=fmean(each.copy_seconds for each in pauses),
            higher_is_better=False,
        ),
        ratio_figure(
            f"{stem}.pause_ratio",
            "/ one copy of the bytes",
            [(each.seconds, each.copy_seconds) for each in pauses],
            ideal=1.0,
            higher_is_better=False,
        ),
        mean_figure(
            f"{stem}.beyond_copy",
            "s of the pause beyond one copy of the bytes",
            [each.seconds - each.copy_seconds for each in pauses],
            target=longest_standstill_seconds,
            ideal=0.0,
            higher_is_better=False,
        ),
    ]
