"""Sealing and writing a version: the engine trains on between the two."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from support.exports import export_of, numbers

from rollog.kernel.errors import EngineError, WeightsError
from rollog.kernel.weights import WeightsStore
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.publishing import WeightsPublisher, weights_sha256

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rollog.kernel.versions.tensors import TensorSink
    from trainer.engines.ports import EngineDescription

identities = pytest.mark.parametrize("identity", ["content", "file"])


class HoldsTensors(SimulatedTrainingEngine):
    """An engine whose weights a test sets."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        self.start("no model")
        self.tensors = tensors

    def export_weights(self, sink: TensorSink | None) -> None:
        assert sink is not None
        export_of(self.tensors)(sink)


@identities
def test_what_is_written_is_what_the_engine_had_when_it_was_sealed(tmp_path: Path, identity: str) -> None:
    store, engine = WeightsStore(str(tmp_path)), HoldsTensors(a=numbers(100), b=numbers(7, 3))
    publisher = WeightsPublisher(store, lambda: identity)
    expected = weights_sha256(engine, identity)
    sealed = publisher.seal(4, engine)
    engine.tensors["a"].zero_()
    notice = publisher.write(sealed).notice
    assert (notice.version, notice.sha256) == (4, expected)
    store.check(notice)
    assert publisher.publish(5, engine).sha256 == weights_sha256(engine, identity) != expected


class KnowsWords(HoldsTensors):
    """With a vocabulary of ten, all equally likely but what is trained."""

    certainty = 0.1

    def describe(self) -> EngineDescription:
        return replace(super().describe(), model_config_json='{"text_config": {"vocab_size": 10}}')

    def sequence_logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        assert 0 <= min(token_ids) <= max(token_ids) < 10
        return (math.log(self.certainty),) * (len(token_ids) - 1)


@identities
def test_every_notice_has_the_log_probabilities_of_what_was_sealed(tmp_path: Path, identity: str) -> None:
    engine = KnowsWords(a=numbers(100))
    publisher = WeightsPublisher(WeightsStore(str(tmp_path)), lambda: identity)
    first = publisher.publish(0, engine)
    sealed = publisher.seal(1, engine)
    engine.certainty = 0.9
    second = publisher.write(sealed).notice
    assert first.probe is not None
    assert first.probe == second.probe
    assert first.probe.logprobs == (math.log(0.1),) * (len(first.probe.token_ids) - 1)
    assert publisher.publish(2, HoldsTensors(a=numbers(100))).probe is None


@identities
def test_a_write_that_failed_is_made_again_from_the_copy(tmp_path: Path, identity: str) -> None:
    place = tmp_path / "store"
    place.write_text("in the way")
    store, engine = WeightsStore(str(place)), HoldsTensors(a=numbers(100))
    publisher = WeightsPublisher(store, lambda: identity)
    expected = weights_sha256(engine, identity)
    sealed = publisher.seal(1, engine)
    engine.tensors["a"].zero_()
    with pytest.raises(WeightsError):
        publisher.write(sealed)
    place.unlink()
    notice = publisher.write(sealed).notice
    assert notice.sha256 == expected
    assert store.orphans([notice.name]) == []


def test_a_version_that_another_one_has_overwritten_is_not_written(tmp_path: Path) -> None:
    publisher = WeightsPublisher(WeightsStore(str(tmp_path)), lambda: "content")
    engine = HoldsTensors(a=numbers(100))
    sealed = publisher.seal(1, engine)
    publisher.seal(2, engine)
    with pytest.raises(ValueError, match="version 1 cannot be written"):
        publisher.write(sealed)


def test_a_nan_is_refused_at_the_seal(tmp_path: Path) -> None:
    publisher = WeightsPublisher(WeightsStore(str(tmp_path)), lambda: "content")
    engine = HoldsTensors(a=torch.tensor([1.0, torch.nan]))
    with pytest.raises(EngineError, match="a has a NaN at element 1"):
        publisher.seal(1, engine)
    assert WeightsStore(str(tmp_path)).names() == []


def test_a_run_with_single_files_is_not_refused_for_a_nan(tmp_path: Path) -> None:
    engine = HoldsTensors(a=torch.tensor([1.0, torch.nan]))
    publisher = WeightsPublisher(WeightsStore(str(tmp_path)), lambda: "file")
    assert publisher.publish(1, engine).sha256 == weights_sha256(engine, "file")
