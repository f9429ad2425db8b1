"""A worker's first weights: the engine's log-probabilities beside those that the trainer put into the notice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save
from support.waiting import wait_until
from support.worker_thread import Stage, running

from producers.engines.simulated import SimulatedEngine
from producers.rollout.first_load import FirstLoad
from rollog.kernel.errors import EngineError, LogprobsOff, exit_status
from schemas import WeightsProbe, WeightVersion, float32_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas import Float32Array

probe = WeightsProbe(token_ids=tuple(range(2, 34)), logprobs=(-1.5,) * 31)
notice = WeightVersion(version=3, sha256="a" * 64, name="v3", num_bytes=1, probe=probe)


class ScoringEngine(SimulatedEngine):
    """Gives the log-probability -1.5 and what is told for the last tokens of a sequence."""

    def __init__(self, *off: float, max_context_tokens: int = 256, failure: str | None = None) -> None:
        super().__init__(max_context_tokens=max_context_tokens)
        self._off = list(off)
        self._failure = failure
        self.asked: list[int] = []

    async def prompt_logprobs(  # type: ignore[override]
        self, token_ids: Sequence[int], request_id: str
    ) -> Float32Array:
        del request_id
        self.asked.append(len(token_ids))
        if self._failure is not None:
            raise EngineError(self._failure)
        values = [0.0, *[-1.5] * (len(token_ids) - 1)]
        if self._off:
            values[-len(self._off) :] = [-1.5 + off for off in self._off]
        return float32_array(values)


def test_after_version_0_the_next_version_is_compared_too() -> None:
    """Adapters do nothing in version 0, and nothing comes as a patch."""
    engine = ScoringEngine()
    checked(engine, *(replace(notice, version=version) for version in (0, 2, 3)))
    assert len(engine.asked) == 2


def checked(engine: SimulatedEngine, *notices: WeightVersion, tolerance: float = 0.25) -> None:
    first_load = FirstLoad(engine, tolerance)

    async def all_checks() -> None:
        for each in notices or (notice,):
            await first_load.check(each)

    asyncio.run(all_checks())


@pytest.mark.parametrize("off", [[], [0.24] * 31, [-0.24] * 31, [5.0]])
def test_small_differences_and_one_far_token_are_let_through(off: list[float]) -> None:
    checked(ScoringEngine(*off))


@pytest.mark.parametrize("off", [[0.26] * 31, [-0.26] * 31, [1.1, 1.1], [float("nan")], [-float("inf")]])
def test_what_is_off_in_the_mean_or_far_off_in_places_ends_the_worker(off: list[float]) -> None:
    with pytest.raises(
        LogprobsOff, match="simulated 1 computes other log-probabilities for version 3"
    ) as raised:
        checked(ScoringEngine(*off))
    assert "rollout.first_load_tolerance" in str(raised.value)
    assert exit_status(raised.value) == 3


def test_only_the_first_version_with_a_probe_is_compared() -> None:
    engine = ScoringEngine()
    checked(engine, replace(notice, probe=None), notice, notice)
    assert engine.asked == [32]


def test_with_a_tolerance_of_0_nothing_is_asked() -> None:
    engine = ScoringEngine(9.0)
    checked(engine, tolerance=0.0)
    assert engine.asked == []


def test_a_probe_longer_than_the_context_is_compared_as_far_as_it_goes() -> None:
    engine = ScoringEngine(max_context_tokens=12)
    checked(engine)
    assert engine.asked == [11]
    with pytest.raises(LogprobsOff):
        checked(ScoringEngine(3.0, max_context_tokens=12))


@pytest.mark.parametrize(
    "bad",
    [
        WeightsProbe(token_ids=(1,), logprobs=()),
        WeightsProbe(token_ids=(1, 2, 3), logprobs=(-1.0,)),
        WeightsProbe(token_ids=(-1, 2), logprobs=(-1.0,)),
        WeightsProbe(token_ids=(1,) * 5000, logprobs=(-1.0,) * 4999),
    ],
)
def test_what_cannot_be_a_probe_is_passed_over(bad: WeightsProbe) -> None:
    engine = ScoringEngine(9.0, max_context_tokens=10_000)
    checked(engine, replace(notice, probe=bad))
    assert engine.asked == []


def test_an_engine_that_refuses_is_asked_again_and_one_that_has_none_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusing = ScoringEngine(failure="no prompt log-probabilities here")
    checked(refusing, notice, notice)
    assert refusing.asked == [32, 32]
    assert caplog.messages.count("log-probabilities cannot be compared with the trainer's") == 2
    checked(SimulatedEngine(), notice, notice)


def test_a_worker_that_computes_something_else_ends_before_it_serves_that_version(stage: Stage) -> None:
    with running(stage, engine=ScoringEngine(*[2.0] * 31), expect_error=True) as worker:
        stage.give_grant()
        stage.wait_until_serving(0)
        published = stage.store.publish(1, save({"w": np.ones(2, dtype=np.float32)}))
        stage.send(stage.topics.weights, replace(published, probe=probe))
        wait_until(lambda: not worker.is_alive(), message="the worker's end")
    assert isinstance(stage.error, BaseExceptionGroup)
    found = stage.error.subgroup(LogprobsOff)
    assert found is not None
    assert "2 nats apart in the mean of 31 tokens" in str(found.exceptions[0])
    assert 1 not in {status.served_version for status in stage.statuses()}
