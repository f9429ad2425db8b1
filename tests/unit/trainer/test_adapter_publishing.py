"""Versions of adapters are stored beside version 0, and read by whoever joins, follows, or exports."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.exports import export_of, numbers
from support.patched_versions import are_equal, found_at

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.adapter import Adapter, matrix_names
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.versions.files import adapter_at
from rollog.kernel.versions.identity import digest_of_export
from rollog.kernel.versions.manifest import parse_manifest
from rollog.kernel.weights import WeightsStore
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.publishing import WeightsPublisher, weights_sha256

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.kernel.versions.tensors import TensorSink
    from schemas import WeightVersion
    from trainer.engines.ports import EngineDescription

    Edit = Callable[[dict[str, Any]], object]

adapter = Adapter(rank=2, scaling=1.5, targets=("up",))
first, second = matrix_names("up")


class Adapts(SimulatedTrainingEngine):
    """A layer with an adapter whose matrices a test changes, and a large tensor that stays as it is."""

    def __init__(self, adapter: Adapter | None = adapter) -> None:
        super().__init__()
        self.start("no model")
        self.adapter = adapter
        self.tensors = {
            "norm": numbers(200_000),
            "up.weight": numbers(6, 4),
            first: numbers(2, 4, seed=1),
            second: torch.zeros(6, 2),
        }

    def step(self) -> None:
        self.tensors[first] = self.tensors[first] + 1
        self.tensors[second] = self.tensors[second] - 1

    def describe(self) -> EngineDescription:
        return replace(super().describe(), adapter=self.adapter)

    def export_weights(self, sink: TensorSink | None) -> None:
        assert sink is not None
        export_of(self.tensors)(sink)


class Run:
    """A publisher with the notices that a log would have."""

    def __init__(self, store: WeightsStore) -> None:
        self.store = store
        self.engine = Adapts()
        self.notices: list[WeightVersion] = []
        self.restart()

    def restart(self) -> None:
        self.publisher = WeightsPublisher(
            self.store,
            lambda: "content",
            first=lambda: self.notices[0] if self.notices else None,
        )

    def publish(self) -> WeightVersion:
        version = len(self.notices)
        notice = self.publisher.write(self.publisher.seal(version, self.engine)).notice
        assert notice.sha256 == weights_sha256(self.engine, "content")
        self.notices.append(notice)
        self.engine.step()
        return notice


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(WeightsStore(str(tmp_path / "store")))


def test_versions_after_0_have_the_adapter_alone_also_those_of_the_next_trainer(run: Run) -> None:
    for version in range(20):
        if version == 3:
            run.restart()
        run.publish()
    stored = [notice.stored_bytes for notice in run.notices]
    assert stored[0] > 800_000
    assert max(stored[1:]) < 2000
    assert [notice.base.version for notice in run.notices if notice.base is not None] == [0] * 19
    assert len({notice.sha256 for notice in run.notices}) == 20
    run.store.check(run.notices[19])


def test_without_version_0_and_where_it_is_of_another_model_versions_are_full(run: Run) -> None:
    run.publish()
    for name in run.store.file_names(run.notices[0]):
        run.store.delete(name)
    run.restart()
    assert run.publish().base is None
    run.notices[0] = run.store.publish_tensors(0, export_of({"other": numbers(3)}))
    run.restart()
    assert run.publish().base is None


def test_once_a_shard_of_version_0_is_lost_versions_are_full(run: Run) -> None:
    run.publish()
    assert run.publish().base is not None
    shard = next(name for name in run.store.file_names(run.notices[0]) if name.endswith(".safetensors"))
    run.store.delete(shard)
    assert not run.store.has(run.notices[1])
    again = run.publisher.publish(1, run.engine)  # as an idle trainer does
    assert again.base is None
    assert run.publish().base is None
    run.publisher.forget_base()  # as one does that is ahead
    assert run.publish().base is None
    run.store.check(run.notices[-1])


def test_a_reader_that_follows_fetches_the_adapter_alone(run: Run, tmp_path: Path) -> None:
    versions = []
    for _ in range(4):
        versions.append(run.engine.tensors.copy())
        run.publish()
    copy = VersionCopy(tmp_path / "copy")
    run.store.bring(run.notices[1], copy)
    for name in run.store.file_names(run.notices[0]):
        if name.endswith("safetensors"):
            run.store.delete(name)  # nobody needs it any more who is here
    for version in (3, 2):
        path = run.store.bring(run.notices[version], copy)
        assert are_equal(found_at(path), versions[version])
        assert adapter_at(path) == adapter
    with pytest.raises(WeightsError):
        run.store.bring(run.notices[3], VersionCopy(tmp_path / "late"))


def test_a_copy_of_another_model_is_not_followed(run: Run, tmp_path: Path) -> None:
    for _ in range(3):
        run.publish()
    copy = VersionCopy(tmp_path / "copy")
    other = run.engine.tensors | {"norm": numbers(200_000, seed=5)}
    run.store.bring(run.store.publish_tensors(1, export_of(other), adapter=adapter), copy)
    path = run.store.bring(run.notices[2], copy)
    assert copy.pair is not None
    assert copy.pair.digest == run.notices[2].sha256
    assert torch.equal(found_at(path)["norm"], numbers(200_000))


def test_the_digest_says_what_is_done_with_the_matrices(run: Run) -> None:
    engine = run.engine
    digests = {
        digest_of_export(engine.export_weights, each)
        for each in (
            None,
            adapter,
            replace(adapter, scaling=1.0),
            replace(adapter, rule="transposed"),
            replace(adapter, targets=("up", "down")),
            replace(adapter, rank=3),
        )
    }
    assert len(digests) == 6


def adapter_with(**changes: object) -> Edit:
    return lambda content: content["adapter"].update(changes)


forged: dict[str, tuple[Edit, str]] = {
    "no rank": (lambda content: content["adapter"].pop("rank"), "rank, rule, scaling, targets"),
    "a further key": (adapter_with(code="x"), "rank, rule, scaling, targets"),
    "a list": (lambda content: content.update(adapter=[1]), "an object with"),
    "rank 0": (adapter_with(rank=0), "its rank is 0"),
    "a rank of another layer": (adapter_with(rank=3), r"shapes \(\(2, 4\), \(6, 2\)\), its weight \(6, 4\)"),
    "a rank that is no number": (adapter_with(rank=True), "its rank is True"),
    "a rank like a bomb": (adapter_with(rank=1 << 40), "its rank is 1099511627776"),
    "a scaling that is not finite": (adapter_with(scaling=float("inf")), "scaling is inf|no JSON"),
    "a scaling that is no number": (adapter_with(scaling="1"), "its scaling is '1'"),
    "an unknown rule": (adapter_with(rule="dora"), "its rule is 'dora'"),
    "the other rule": (adapter_with(rule="transposed"), "matrices of layer 'up' have shapes"),
    "a layer that is not there": (adapter_with(targets=["down"]), "the layer 'down', of which a tensor"),
    "no layers": (adapter_with(targets=[]), "its targets are no sorted list"),
    "layers twice": (adapter_with(targets=["up", "up"]), "its targets are no sorted list"),
    "a layer that is no text": (adapter_with(targets=[1]), "its targets are no sorted list"),
    "layers that are no list": (adapter_with(targets="up"), "its targets are no sorted list"),
}


@pytest.mark.parametrize("what", forged)
def test_a_forged_adapter_is_refused_and_what_is_wrong_named(run: Run, tmp_path: Path, what: str) -> None:
    edit, named = forged[what]
    notice = run.publish()
    text = (tmp_path / "store" / notice.name).read_bytes()
    head, content, storage, _ = text.split(b"\n")
    value = json.loads(content)
    edit(value)
    content = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    parse_manifest(text, notice.name)
    with pytest.raises(WeightsError, match=named):
        parse_manifest(b"\n".join((head, content, storage, b"")), notice.name)


@pytest.mark.parametrize(
    "tensors",
    [
        {"up.weight": numbers(6)},
        {"up.weight": torch.ones(6, 4, dtype=torch.int32)},
        {first: numbers(2, 4, 1)},
    ],
    ids=["a vector", "whole numbers", "three dimensions"],
)
def test_a_layer_that_cannot_be_adapted_is_refused(run: Run, tensors: dict[str, torch.Tensor]) -> None:
    run.engine.tensors |= tensors
    notice = run.publish()
    with pytest.raises(WeightsError, match=r"whose weight cannot be adapted|have shapes"):
        run.store.check(notice)
