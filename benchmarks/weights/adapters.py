"""Versions of adapters as a run publishes them: what is stored, what it takes, whether a joiner has every bit."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, mean_figure
from benchmarks.weights.floors import copy_seconds
from benchmarks.weights.updates import adapter_engine, write_model
from rollog.kernel.errors import WeightsError
from rollog.kernel.weights import WeightsStore
from trainer.publishing import WeightsPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape
    from benchmarks.weights.updates import AdapterTraining
    from schemas.weights import WeightVersion

ranks = (8, 32)


def measure_adapters(
    *, shape: ModelShape, num_versions: int, home: Path, seed: int, on_progress: Callable[[str], None]
) -> list[Figure]:
    """Each rank in a run of its own: all linear layers have adapters, in bfloat16."""
    model = home / "model"
    write_model(model, shape, seed)
    figures: list[Figure] = []
    for rank in ranks:
        with closing(adapter_engine(model, shape, rank=rank, num_steps=num_versions)) as training:
            figures += _published(rank, training, num_versions, home / f"rank-{rank}", seed)
        on_progress(f"rank {rank}: {100 * figures[-4].value:.2f} % of the bytes of version 0")
    return figures


def _published(
    rank: int, training: AdapterTraining, num_versions: int, home: Path, seed: int
) -> list[Figure]:
    notices: list[WeightVersion] = []
    seals, writes = [], []
    store = WeightsStore(str(home / "store"))
    publisher = WeightsPublisher(store, lambda: "content", first=lambda: notices[0] if notices else None)
    for version in range(num_versions + 1):
        if version > 0:
            training.step(version, seed)
        began = time.perf_counter()
        sealed = publisher.seal(version, training.engine)
        sealed_at = time.perf_counter()
        notices.append(publisher.write(sealed).notice)
        seals.append(sealed_at - began)
        writes.append(time.perf_counter() - sealed_at)
    full_bytes = notices[0].stored_bytes
    name = f"weights.adapters.rank_{rank}"
    return [
        mean_figure(
            f"{name}.share",
            "bytes of a version / bytes of version 0",
            [notice.stored_bytes / full_bytes for notice in notices[1:]],
            higher_is_better=False,
        ),
        mean_figure(
            f"{name}.seal",
            "s on the trainer's thread, once memory is taken",
            seals[2:],
            ideal=copy_seconds(full_bytes),
            higher_is_better=False,
        ),
        mean_figure(f"{name}.write", "s beside the next step", writes[1:], higher_is_better=False),
        Figure(
            name=f"{name}.unequal",
            value=_num_unequal(store, notices, home / "joiner"),
            unit="versions that a late joiner could not rebuild",
            target=0,
            higher_is_better=False,
        ),
    ]


def _num_unequal(store: WeightsStore, notices: Sequence[WeightVersion], directory: Path) -> int:
    """Every version is rebuilt, and compared by its digest, which `fetch` does."""
    num = 0
    for notice in notices:
        try:
            store.fetch(notice, directory / str(notice.version))
        except WeightsError:
            num += 1
    return num
