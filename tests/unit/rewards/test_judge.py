"""`judge`: what is asked, what is read, what is asked again, and what fails one sample."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.chat_endpoint import ChatEndpoint, a_chat_endpoint

from producers.rewards.choice import make_rewards
from producers.rewards.functions import RewardResult, await_reward_function
from producers.rewards.library.catalogue import function_of
from producers.rewards.library.judge import filled, pause_before
from rollog.kernel.errors import DataError, RewardError
from rollog.settings.generation import RewardConfig
from rollog.settings.named_rewards import JudgeReward

if TYPE_CHECKING:
    from collections.abc import Callable

template = "Question: {prompt}\nResponse: {response}\nGold: {answer}\nScore:"


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.rewards.library.judge._first_pause_seconds", 0.001)
    monkeypatch.setattr("producers.rewards.library.judge._longest_pause_seconds", 0.002)


def a_judge(address: str, **options: Any) -> JudgeReward:
    given = {"name": "judge", "address": address, "model": "judge-1", "template": template, **options}
    return JudgeReward.model_validate(given)


async def one_call(address: str, **options: Any) -> RewardResult:
    function = function_of(a_judge(address, **options))
    return await await_reward_function(function, "2 + 2?", "four", {"answer": 4}, timeout_seconds=20)


def asked_once(*script: str | int | bytes | None, **options: Any) -> tuple[float, ChatEndpoint]:
    async def run() -> tuple[float, ChatEndpoint]:
        async with a_chat_endpoint(*script) as endpoint:
            return (await one_call(endpoint.address, **options)).reward, endpoint

    return asyncio.run(run())


def refused(*script: str | int | bytes | None, **options: Any) -> tuple[str, ChatEndpoint]:
    async def run() -> tuple[str, ChatEndpoint]:
        async with a_chat_endpoint(*script) as endpoint:
            with pytest.raises(RewardError) as failure:
                await one_call(endpoint.address, **options)
            return str(failure.value), endpoint

    return asyncio.run(run())


def test_the_judge_is_asked_with_the_template_filled() -> None:
    reward, endpoint = asked_once("Score: 7", system="Be strict.", temperature=0.5, max_tokens=9)

    assert reward == 7.0
    assert endpoint.asked == [
        {
            "model": "judge-1",
            "messages": [
                {"role": "system", "content": "Be strict."},
                {"role": "user", "content": "Question: 2 + 2?\nResponse: four\nGold: 4\nScore:"},
            ],
            "temperature": 0.5,
            "max_tokens": 9,
        }
    ]
    assert endpoint.keys == [None]


@pytest.mark.parametrize(
    ("said", "options", "reward"),
    [
        ("It is 3 of 10, so: 0.3", {}, 0.3),
        ("Score: 8/10", {"pattern": r"(\d+)/10"}, 8.0),
        ("-2.5", {}, -2.5),
        ("11", {"bounds": [0, 10]}, 10.0),
        ("-1", {"bounds": [0, 10]}, 0.0),
    ],
)
def test_the_last_match_is_the_number(said: str, options: dict[str, Any], reward: float) -> None:
    assert asked_once(said, **options)[0] == reward


@pytest.mark.parametrize("first", [429, 500, 503, None])
def test_what_may_pass_is_asked_again(first: int | None) -> None:
    reward, endpoint = asked_once(first, first, "1", request_seconds=0.5 if first is None else 20)

    assert reward == 1.0
    assert len(endpoint.asked) == 3


def test_a_judge_that_stays_away_fails_the_sample_after_its_attempts() -> None:
    message, endpoint = refused(503, attempts=3)

    assert "did not answer in 3 attempts" in message
    assert "answered 503: 'not now'" in message
    assert len(endpoint.asked) == 3


def test_a_judge_that_nobody_serves_fails_the_sample() -> None:
    with pytest.raises(RewardError, match=r"2 attempts.*127\.0\.0\.1:1/v1 cannot be reached"):
        asyncio.run(one_call("http://127.0.0.1:1/v1", attempts=2))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (401, "answered 401"),
        (302, "answered 302"),
        ("no score", "gave no number where pattern"),
        (b"<html>", "is no chat completion"),
        (b'{"choices": []}', "is no chat completion"),
        (b'{"choices": [{"message": {"content": null}}]}', "has no text; raise max_tokens"),
        (b" " * 2_000_000, "more than 1048576 bytes"),
    ],
)
def test_what_will_not_pass_fails_at_once(script: str | int | bytes, message: str) -> None:
    said, endpoint = refused(script)

    assert message in said
    assert len(endpoint.asked) == 1


def test_pauses_double_and_heed_what_the_endpoint_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.rewards.library.judge._first_pause_seconds", 1.0)
    monkeypatch.setattr("producers.rewards.library.judge._longest_pause_seconds", 8.0)

    assert 0.5 <= pause_before(1, None) <= 1.0
    assert 2.0 <= pause_before(3, None) <= 4.0
    assert 4.0 <= pause_before(9, None) <= 8.0
    assert pause_before(1, 5.0) == 5.0
    assert pause_before(1, 3600.0) == 8.0


def test_what_is_put_into_the_template_is_not_filled_again() -> None:
    text = filled('{response} {{word}} {"score": 1}', "p", "{prompt} {0.__class__}", {})

    assert text == '{prompt} {0.__class__} {word} {"score": 1}'


def test_chat_messages_are_shown_by_role() -> None:
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 2?"}]

    assert filled("{prompt}", messages, "", {}) == "system: Add.\n\nuser: 2 + 2?"


def test_a_field_that_the_row_lacks_is_named() -> None:
    with pytest.raises(RewardError, match=r"asks for \{gold\}, which the row lacks \(its fields: answer\)"):
        filled("{response} {gold}", "", "", {"answer": 1})


def test_the_key_comes_from_the_variable_and_only_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "abc")
    _, endpoint = asked_once("1", variable="JUDGE_KEY")
    assert endpoint.keys == ["Bearer abc"]

    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(DataError, match="JUDGE_KEY, which is not set"):
        function_of(a_judge("http://127.0.0.1:1", variable="JUDGE_KEY"))


def in_processes(config: Callable[[str], RewardConfig], num_calls: int) -> tuple[list[float], ChatEndpoint]:
    async def run() -> tuple[list[float], ChatEndpoint]:
        async with a_chat_endpoint("5") as endpoint:
            settings = config(endpoint.address)
            endpoint.held = asyncio.Event()
            rewards = make_rewards(None, settings)
            await rewards.start()
            try:
                calls = [
                    asyncio.ensure_future(rewards.score("p", str(n), {"answer": n})) for n in range(num_calls)
                ]
                async with asyncio.timeout(30):
                    while endpoint.at_once < settings.max_in_flight:  # noqa: ASYNC110 - the server has no event
                        await asyncio.sleep(0.01)
                    endpoint.held.set()
                    results = await asyncio.gather(*calls)
            finally:
                await rewards.close()
            return [result.reward for result in results], endpoint

    return asyncio.run(run())


def test_as_many_are_asked_at_once_as_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "abc")

    def config(address: str) -> RewardConfig:
        judge = a_judge(address, variable="JUDGE_KEY", request_seconds=20).model_dump(mode="json")
        return RewardConfig(
            components=[judge],
            environment=["JUDGE_KEY"],
            max_in_flight=4,
            timeout_seconds=30,
            num_processes=2,
        )

    rewards, endpoint = in_processes(config, num_calls=12)

    assert rewards == [5.0] * 12
    assert endpoint.most_at_once == 4
    assert set(endpoint.keys) == {"Bearer abc"}
    assert len({json.dumps(each) for each in endpoint.asked}) == 12
