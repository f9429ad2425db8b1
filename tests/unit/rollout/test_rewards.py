"""Rewards: whatever the user's function does, one sample fails and the others go on."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.waiting import wait_until

from producers.rewards.choice import make_rewards
from producers.rewards.functions import RewardResult, call_reward_function
from producers.rewards.in_process import InProcessRewards
from producers.rewards.pool import RewardPool
from producers.rewards.shuffled import ShuffledRewards
from rollog.kernel.errors import DataError, RewardError
from rollog.settings.generation import RewardConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from producers.rewards.ports import Rewards

function = "support.reward_functions_for_tests:reward"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture(params=["in process", "pool"])
def make(request: pytest.FixtureRequest) -> Callable[[], Rewards]:
    def build() -> Rewards:
        if request.param == "pool":
            return RewardPool(function, num_processes=2, timeout_seconds=20)
        return InProcessRewards(function)

    return build


def with_rewards(rewards: Rewards, scenario: Callable[[Rewards], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        await rewards.start()
        try:
            return await asyncio.wait_for(scenario(rewards), 30)
        finally:
            await rewards.close()

    return asyncio.run(run())


def test_a_number_is_the_reward(make: Callable[[], Rewards]) -> None:
    async def scenario(rewards: Rewards) -> RewardResult:
        return await rewards.score("a prompt", "four", {})

    assert with_rewards(make(), scenario) == RewardResult(reward=4.0)


def test_a_mapping_gives_reward_and_components(make: Callable[[], Rewards]) -> None:
    async def scenario(rewards: Rewards) -> RewardResult:
        return await rewards.score("a prompt", "x", {"behaviour": "mapping"})

    assert with_rewards(make(), scenario) == RewardResult(
        reward=1.0, components={"format": 0.5, "prompt_length": 2.0}
    )


def test_turns_have_rewards_of_their_own(make: Callable[[], Rewards]) -> None:
    async def scenario(rewards: Rewards) -> RewardResult:
        return await rewards.score("a prompt", "x", {"behaviour": "turns"})

    assert with_rewards(make(), scenario) == RewardResult(reward=1.5, turn_rewards=(1.0, 0.5))


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [("no turns", "no list as turn_rewards: '0.5'"), ("endless turn", r"as turn_rewards\[1\]: 'inf'")],
)
def test_turns_that_are_no_numbers_are_refused(
    make: Callable[[], Rewards], behaviour: str, message: str
) -> None:
    async def scenario(rewards: Rewards) -> RewardResult:
        return await rewards.score("a prompt", "x", {"behaviour": behaviour})

    with pytest.raises(RewardError, match=message):
        with_rewards(make(), scenario)


def test_a_chat_prompt_arrives_as_its_messages(make: Callable[[], Rewards]) -> None:
    async def scenario(rewards: Rewards) -> RewardResult:
        messages = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "y"}]
        return await rewards.score(messages, "four", {"behaviour": "prompt length"})

    assert with_rewards(make(), scenario).reward == 2.0


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("nan", "no finite number"),
        ("inf", "no finite number"),
        ("text", "no finite number"),
        ("nothing", "no finite number"),
        ("no key", "without the key 'reward'"),
        ("raise", "raised KeyError"),
        ("huge", "no finite number"),
        ("unprintable", "no finite number"),
        ("sys.exit", "raised SystemExit"),
    ],
)
def test_a_bad_value_fails_its_own_call_only(
    make: Callable[[], Rewards], behaviour: str, message: str
) -> None:
    async def scenario(rewards: Rewards) -> RewardResult:
        with pytest.raises(RewardError, match=message):
            await rewards.score("p", "r", {"behaviour": behaviour})
        return await rewards.score("p", "r", {})

    assert with_rewards(make(), scenario).reward == 1.0


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(2), np.bool_(True), np.array(1.5)])
def test_numbers_of_numpy_are_numbers(value: Any) -> None:
    assert call_reward_function(lambda _prompt, _response: value, "", "", {}).reward == float(value)


@pytest.mark.parametrize("behaviour", ["hang", "exit"])
def test_a_call_that_hangs_or_kills_its_process_fails_and_those_behind_it_are_answered(
    behaviour: str,
) -> None:
    pool = RewardPool(function, num_processes=1, timeout_seconds=0.5)

    async def scenario(rewards: Rewards) -> list[Any]:
        bad = rewards.score("p", "r", {"behaviour": behaviour})
        others = [rewards.score("p", "x" * length, {}) for length in range(1, 6)]
        first = pool.pids
        outcome = await asyncio.gather(bad, *others, return_exceptions=True)
        assert pool.pids != first
        return outcome

    failure, *results = with_rewards(pool, scenario)
    assert isinstance(failure, RewardError)
    assert ("longer than 0.5 s" in str(failure)) == (behaviour == "hang")
    assert [result.reward for result in results] == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    "attack",
    [
        "pool and hang",
        "daemon and exit",
        "bare fork and exit",
        "no json",
        "half an answer",
        "whole answer",
        "huge answer",
        "endless line",
    ],
)
def test_a_function_that_attacks_its_process_costs_its_own_sample(attack: str, tmp_path: Path) -> None:
    pool = RewardPool(function, num_processes=1, timeout_seconds=2.0)

    async def scenario(rewards: Rewards) -> list[Any]:
        bad = rewards.score(str(tmp_path / "pid"), "r", {"behaviour": attack})
        others = [rewards.score("p", "x" * length, {}) for length in (1, 2)]
        return await asyncio.wait_for(asyncio.gather(bad, *others, return_exceptions=True), 15)

    failure, *results = with_rewards(pool, scenario)
    assert isinstance(failure, RewardError)
    assert [result.reward for result in results] == [1.0, 2.0]
    if (tmp_path / "pid").exists():
        left_behind = int((tmp_path / "pid").read_text(encoding="utf-8"))
        wait_until(lambda: not is_alive(left_behind))


def test_a_function_that_returns_on_both_sides_of_a_fork_gives_one_answer() -> None:
    async def scenario(rewards: Rewards) -> list[float]:
        forked = await rewards.score("p", "r", {"behaviour": "both sides"})
        others = [await rewards.score("p", "x" * length, {}) for length in (1, 2)]
        return [result.reward for result in (forked, *others)]

    assert with_rewards(RewardPool(function, num_processes=1), scenario) == [5.0, 1.0, 2.0]


def test_what_a_function_prints_does_not_come_out_of_the_worker(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(rewards: Rewards) -> RewardResult:
        return await rewards.score("p", "r", {"behaviour": "flood"})

    assert with_rewards(RewardPool(function, num_processes=1), scenario).reward == 4.0
    assert "xxxx" not in "".join(capfd.readouterr())


def test_a_reward_process_gets_the_usual_variables_and_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LC_ALL", "JUDGE_API_KEY", "ANOTHER_SECRET"):
        monkeypatch.setenv(name, "C")
    rewards = make_rewards(function, RewardConfig(environment=("JUDGE_API_KEY", "NOT_SET")))

    async def scenario(rewards: Rewards) -> RewardResult:
        return await rewards.score("p", "r", {"behaviour": "variables"})

    seen = with_rewards(rewards, scenario).components.keys()
    assert {"PATH", "HOME", "LC_ALL", "PYTHONPATH", "JUDGE_API_KEY"} <= seen
    assert not {"ANOTHER_SECRET", "NOT_SET"} & seen


@pytest.mark.parametrize("behaviour", ["swallow memory", "swallow memory in a child"])
def test_a_function_that_takes_too_much_memory_fails_its_own_call(behaviour: str) -> None:
    rewards = make_rewards(function, RewardConfig(max_memory_bytes=512 << 20))

    async def scenario(rewards: Rewards) -> list[Any]:
        calls = [rewards.score("p", "r", {"behaviour": behaviour}), rewards.score("p", "four", {})]
        return await asyncio.gather(*calls, return_exceptions=True)

    failure, result = with_rewards(rewards, scenario)
    assert isinstance(failure, RewardError)
    assert ("MemoryError" in str(failure)) == (behaviour == "swallow memory")
    assert result.reward == 4.0


def test_many_calls_at_once_each_get_their_own_answer() -> None:
    async def scenario(rewards: Rewards) -> list[RewardResult]:
        return list(await asyncio.gather(*(rewards.score("p", "x" * (n % 50), {}) for n in range(500))))

    results = with_rewards(RewardPool(function, num_processes=2), scenario)
    assert [result.reward for result in results] == [float(n % 50) for n in range(500)]


def test_a_cancelled_call_does_not_disturb_the_order_of_the_others() -> None:
    async def scenario(rewards: Rewards) -> list[float]:
        calls = [asyncio.ensure_future(rewards.score("p", "x" * n, {})) for n in range(20)]
        await asyncio.sleep(0)
        calls.pop(3).cancel()
        return [result.reward for result in await asyncio.gather(*calls)]

    expected = [float(n) for n in range(20) if n != 3]
    assert with_rewards(RewardPool(function), scenario) == expected


@pytest.mark.parametrize(
    "reference",
    [
        "no_such_module:f",
        "support.reward_functions_for_tests:missing",
        "support.reward_functions_for_tests:not_callable",
    ],
)
@pytest.mark.parametrize("num_processes", [0, 1])
def test_a_function_that_cannot_be_used_is_named_at_the_start(reference: str, num_processes: int) -> None:
    rewards = make_rewards(reference, RewardConfig(num_processes=num_processes))

    async def scenario(_: Rewards) -> None:
        raise AssertionError("not reached")

    async def run() -> None:
        try:
            await rewards.start()
        finally:
            await rewards.close()

    with pytest.raises(DataError, match=reference.replace(".", r"\.")):
        asyncio.run(run())


def test_reward_processes_end_with_the_pool() -> None:
    pool = RewardPool(function, num_processes=2)

    async def scenario(_: Rewards) -> list[int]:
        return pool.pids

    pids = with_rewards(pool, scenario)
    assert len(pids) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() and is_alive(pid) for pid in pids))


def test_a_pool_that_closes_while_it_replaces_a_process_leaves_nothing_open() -> None:
    async def scenario(rewards: Rewards) -> None:
        with pytest.raises(RewardError, match="process ended"):
            await rewards.score("p", "r", {"behaviour": "exit"})
        # Far enough for the replacement to be asked for, not for it to be there.
        for _ in range(5):
            await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with_rewards(RewardPool(function), scenario)
        gc.collect()
    assert [str(each.message) for each in caught] == []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class OwnRewards:
    """The reward is the number in the response."""

    async def start(self) -> None:
        pass

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        del prompt, fields
        return RewardResult(reward=float(response), components={"part": 0.5})

    async def close(self) -> None:
        pass


def test_the_negative_control_gives_each_response_the_reward_of_an_earlier_one() -> None:
    async def scenario(rewards: Rewards) -> list[RewardResult]:
        return [await rewards.score("p", str(number), {}) for number in range(1, 401)]

    def run(seed: int) -> list[float]:
        results = with_rewards(ShuffledRewards(OwnRewards(), seed=seed, size=16), scenario)
        assert [result.components["own_reward"] for result in results] == [float(n) for n in range(1, 401)]
        return [result.reward for result in results]

    rewards = run(1)
    assert rewards[0] == 0.0
    assert all(0 < reward < number for number, reward in enumerate(rewards[1:], start=2))
    assert rewards == run(1)
    assert rewards != run(2)


def test_calls_fail_when_the_process_that_died_cannot_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward_that_goes_away.py").write_text(
        "import os, sys\ndef reward(prompt, response, **fields):\n    os.remove(__file__)\n    os._exit(1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    async def scenario(rewards: Rewards) -> list[str]:
        reasons = []
        for _ in range(2):
            with pytest.raises(RewardError) as failure:
                await rewards.score("p", "r", {})
            reasons.append(str(failure.value))
        return reasons

    first, second = with_rewards(RewardPool("reward_that_goes_away:reward"), scenario)
    assert "process ended" in first
    assert "did not start again" in second


def test_calls_of_a_process_whose_replacement_takes_long_go_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward_with_slow_import.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "has_died = Path(__file__).with_name('has died')\n"
        "while has_died.exists():\n    time.sleep(1)\n"
        "def reward(prompt, response, **fields):\n"
        "    if prompt == 'last words':\n"
        "        has_died.touch(), time.sleep(0.3), os._exit(1)\n"
        "    return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def scenario(rewards: Rewards) -> list[Any]:
        calls = [rewards.score(prompt, "r", {}) for prompt in ["last words", *"abcdefgh"]]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 15)

    failure, *results = with_rewards(RewardPool("reward_with_slow_import:reward", num_processes=2), scenario)
    assert isinstance(failure, RewardError)
    assert [result.reward for result in results] == [1.0] * 8


hanging = "reward_that_hangs_in_import:reward"


@pytest.fixture
def hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While this file is there the import of `hanging` does not end; the prompt "last words" makes it."""
    (tmp_path / "reward_that_hangs_in_import.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "hang = Path(__file__).with_name('hang')\n"
        "while hang.exists():\n    time.sleep(0.1)\n"
        "def reward(prompt, response, **fields):\n"
        "    if prompt == 'last words':\n"
        "        hang.touch(), os._exit(1)\n"
        "    return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "hang"


def test_calls_fail_while_the_replacement_hangs_and_later_ones_are_answered(
    hang: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scored_at_last(rewards: Rewards) -> RewardResult:
        while True:
            try:
                return await rewards.score("a prompt", "r", {})
            except RewardError:
                await asyncio.sleep(0.05)

    async def scenario(rewards: Rewards) -> tuple[list[Any], RewardResult]:
        with monkeypatch.context() as impatient:
            impatient.setattr("producers.rewards.worker.start_timeout_seconds", 0.3)
            calls = [rewards.score(prompt, "r", {}) for prompt in ["last words", *"ab"]]
            results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 15)
        await asyncio.to_thread(hang.unlink)
        return results, await scored_at_last(rewards)

    (first, *waiting), later = with_rewards(RewardPool(hanging), scenario)
    assert "process ended" in str(first)
    assert ["did not start again" in str(error) for error in waiting] == [True, True]
    assert later == RewardResult(reward=1.0)


def test_calls_go_to_another_process_between_a_start_that_timed_out_and_its_end() -> None:
    pool = RewardPool(function, num_processes=2)

    async def scenario(rewards: Rewards) -> list[RewardResult]:
        pool._workers[0]._ready = timed_out = asyncio.get_running_loop().create_future()
        timed_out.cancel()
        calls = (rewards.score("a prompt", "four", {}) for _ in range(100))
        return await asyncio.wait_for(asyncio.gather(*calls), 10)

    assert with_rewards(pool, scenario) == [RewardResult(reward=4.0)] * 100
