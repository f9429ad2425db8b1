"""Engines with tensors of a model's sizes: what changes in a step, and how much that is."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.harness.random_model import shapes
from benchmarks.weights.large_engines import DrawingEngine, HoldingEngine, LargeEngine, table_of
from rollog.kernel.versions.identity import digest_of_export
from rollog.kernel.versions.tensors import TensorSpec, total_bytes
from trainer.step.ports import TrainingBatch

kinds = pytest.mark.parametrize("kind", [HoldingEngine, DrawingEngine])


class Kept:
    """Tensors of an export."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray[tuple[int], np.dtype[np.uint16]]] = {}

    def begin(self, table: object) -> None:
        del table

    def add(self, spec: TensorSpec, data: memoryview) -> None:
        if spec.dtype == "BF16":
            self.tensors[spec.name] = np.frombuffer(data, np.uint16).copy()


def exported(engine: LargeEngine) -> Kept:
    kept = Kept()
    engine.export_weights(kept)
    return kept


def started(kind: type[LargeEngine], *, seconds: float = 0.0) -> LargeEngine:
    engine = kind(shapes["tiny"], seconds=seconds)
    engine.start("none")
    return engine


def test_the_tensors_are_as_large_as_those_of_the_model() -> None:
    # Of 494 million parameters and 7.62 billion; norms and biases are left out.
    assert 493_000_000 < total_bytes(table_of(shapes["0.5b"])) / 2 < 494_100_000
    assert 7_610_000_000 < total_bytes(table_of(shapes["7b"])) / 2 < 7_620_000_000
    assert started(HoldingEngine).num_bytes == total_bytes(table_of(shapes["tiny"]))


@kinds
def test_about_two_in_a_hundred_elements_change_to_a_neighbour_each_time_at_other_places(
    kind: type[LargeEngine],
) -> None:
    engine = started(kind)
    versions = [exported(engine)]
    for _ in range(2):
        engine.change()
        versions.append(exported(engine))
    for name in versions[0].tensors:
        first, second, third = (version.tensors[name].astype(np.int32) for version in versions)
        steps = [second - first, third - second]
        assert all(set(np.unique(step)) <= {-1, 0, 1} for step in steps)
        if first.size > 10_000:
            assert all(0.01 < np.count_nonzero(step) / step.size < 0.03 for step in steps)
            assert not np.array_equal(*(step != 0 for step in steps))


@kinds
def test_there_is_no_nan_after_many_changes(kind: type[LargeEngine]) -> None:
    engine = started(kind)
    for _ in range(20):
        engine.change()
    assert digest_of_export(engine.export_weights), "a NaN is refused"


def test_a_step_takes_its_time_with_the_changes_and_makes_another_version() -> None:
    engine = started(HoldingEngine, seconds=0.1)
    before = digest_of_export(engine.export_weights)
    began = time.monotonic()
    engine.train_step(TrainingBatch(samples=(), plan=()))
    assert time.monotonic() - began >= 0.1
    assert digest_of_export(engine.export_weights) != before


def test_what_tensors_take_that_are_made_on_the_way_is_told() -> None:
    engine = DrawingEngine(shapes["tiny"])
    engine.start("none")
    assert engine.making_seconds == 0.0
    exported(engine)
    assert engine.making_seconds > 0.0


@kinds
def test_a_third_of_what_16_versions_change_is_changed_at_the_end(kind: type[LargeEngine]) -> None:
    engine = started(kind)
    versions = [exported(engine)]
    for _ in range(32):
        engine.change()
        versions.append(exported(engine))
    shares = [
        num_changes(versions[0], versions[number])
        / sum(num_changes(*pair) for pair in pairwise(versions[: number + 1]))
        for number in (16, 32)
    ]
    assert shares == [pytest.approx(1 / 3, rel=0.1), pytest.approx(1 / 6, rel=0.1)]


def num_changes(before: Kept, after: Kept) -> int:
    return sum(
        int(np.count_nonzero(before.tensors[name] != tensor)) for name, tensor in after.tensors.items()
    )
