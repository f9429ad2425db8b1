"""`async def` reward functions: many calls at once, and still each of them fails for itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.reward_functions_for_tests import running

from producers.rewards.calls import RewardCall, blame
from producers.rewards.choice import make_rewards
from producers.rewards.pool import RewardPool
from rollog.kernel.errors import RewardError
from rollog.settings.generation import RewardConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.rewards.ports import Rewards

module = "support.reward_functions_for_tests"
function = f"{module}:concurrent_reward"


@pytest.fixture(autouse=True)
def _none_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, for the functions that are called here."""
    monkeypatch.setitem(running, "most", 0)


def scores(rewards: Rewards, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What comes of the calls, made at once: rewards and errors. The nth response has n characters."""

    async def run() -> list[Any]:
        await rewards.start()
        try:
            made = [rewards.score("p", "x" * length, fields) for length, fields in enumerate(calls)]
            outcomes = await asyncio.wait_for(asyncio.gather(*made, return_exceptions=True), 60)
        finally:
            await rewards.close()
        return [each if isinstance(each, BaseException) else each.reward for each in outcomes]

    return asyncio.run(run())


@pytest.mark.parametrize("num_processes", [0, 1])
def test_calls_run_at_once_in_one_process(num_processes: int) -> None:
    rewards = make_rewards(function, RewardConfig(num_processes=num_processes, max_in_flight=64))
    assert scores(rewards, [{"company": 64}] * 64) == [float(n) for n in range(64)]


@pytest.mark.parametrize("num_processes", [0, 1])
def test_the_setting_bounds_the_calls_at_once(num_processes: int) -> None:
    rewards = make_rewards(function, RewardConfig(num_processes=num_processes, max_in_flight=3))
    most = scores(rewards, [{"company": 3, "behaviour": "most at once"}] * 20)
    assert most == [3.0] * 20


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("raise", "raised KeyError"),
        ("nan", "no finite number"),
        ("cancel itself", "cancelled by its own code"),
    ],
)
def test_a_call_that_fails_fails_alone(behaviour: str, message: str) -> None:
    first, failure, last = scores(RewardPool(function), [{}, {"behaviour": behaviour}, {}])
    assert isinstance(failure, RewardError)
    assert message in str(failure)
    assert (first, last) == (0.0, 2.0)


def test_a_late_call_fails_alone_and_its_process_stays() -> None:
    pool = RewardPool(function, timeout_seconds=1.0)
    failure, *others = scores(pool, [{"behaviour": "wait for ever"}, {}, {}])
    assert isinstance(failure, RewardError)
    assert "longer than 1 s" in str(failure)
    assert others == [1.0, 2.0]
    assert pool.num_kills == 0


@pytest.mark.parametrize("behaviour", ["exit", "whole answer", pytest.param("hang", marks=pytest.mark.slow)])
def test_a_call_that_ends_its_process_fails_alone(behaviour: str) -> None:
    pool = RewardPool(function, timeout_seconds=1.0 if behaviour == "hang" else 30.0)
    # The others are still at work when the last one strikes, so each of them may be at fault.
    *others, failure = scores(pool, [{"behaviour": "most at once"}] * 3 + [{"behaviour": behaviour}])
    assert isinstance(failure, RewardError)
    assert [type(each) for each in others] == [float] * 3


def test_the_call_at_fault_is_found_by_halving_its_company() -> None:
    async def run() -> int:
        calls = [RewardCall.of("p", "r", {}) for _ in range(64)]
        culprit, num_ends = calls[37], 0
        together = calls
        while not culprit.result.done():
            blame(together, "its process ended")
            num_ends += 1
            # Those that may run beside the culprit next time; the others are answered without it.
            together = [culprit, *(each for each in together if each is not culprit)][: culprit.most_together]
        assert isinstance(culprit.result.exception(), RewardError)
        assert [each for each in calls if each.result.done()] == [culprit]
        return num_ends

    assert asyncio.run(run()) == 7


def test_a_function_that_is_not_declared_as_async_is_told_to_be() -> None:
    (failure,) = scores(RewardPool(f"{module}:undeclared_coroutine"), [{}])
    assert "declare it as `async def`" in str(failure)
