"""The policy endpoint, asked over HTTP by the openai package and by plain requests."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import openai
import pytest
from safetensors.numpy import save_file
from support.chat_models import a_chat_tokenizer
from support.chatting_agent import a_tool, user
from support.engine_policy import EnginePolicy
from support.served_session import (
    a_served_session,
    post,
    session_name,
    until,
)

from producers.engines.simulated import SimulatedEngine
from producers.sessions.endpoint_limits import EndpointLimits
from producers.sessions.errors import Leaving, SessionFailed
from producers.sessions.listening import Listening
from producers.sessions.recording import Counted, Untrained
from producers.sessions.text_tokens import TextTokens
from rollog.kernel.errors import ConfigError, EngineError
from schemas import SamplingParameters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.served_session import PolicyCalls

    from producers.engines.ports import Generation

call_text = 'let me see<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>'


pytestmark = pytest.mark.usefixtures("_endpoint_kind")


async def chat(client: Any, *messages: dict[str, Any], **options: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=list(messages), **options)


def test_a_conversation_of_the_openai_client_is_one_sequence() -> None:
    async def scenario() -> None:
        async with a_served_session(texts=["yes<|im_end|>", " no <|im_end|>"]) as served:
            client = served.client()
            first = await chat(client, user("hi"))
            assert first.choices[0].message.content == "yes"
            assert first.choices[0].finish_reason == "stop"
            echo = first.choices[0].message.model_dump()
            second = await chat(client, user("hi"), echo, user("and?"))
            assert second.choices[0].message.content == " no "
            assert second.usage.prompt_tokens == len(served.calls.inputs[1])
            recording = await served.recording()
            assert recording.forks == ()
            assert [turn.untrained for turn in recording.turns] == [None, None]
            (model,) = (await client.models.list()).data
            assert (model.id, model.max_model_len) == ("policy", 4000)
            await client.close()

    asyncio.run(scenario())


def test_the_key_may_stand_in_the_path() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            client = served.client(base_url=f"{served.address}/s/{served.key}/v1", api_key="none")
            assert (await chat(client, user("hi"))).choices[0].message.content == "ok"
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_stream", [False, True])
def test_tools_are_called_and_their_results_go_on_from_the_turn(is_stream: bool) -> None:
    async def scenario() -> None:
        async with a_served_session(texts=[call_text, "done<|im_end|>"]) as served:
            client = served.client()
            if is_stream:
                async with client.chat.completions.stream(
                    model="any", messages=[user("hi")], tools=[a_tool()]
                ) as stream:
                    answer = await stream.get_final_completion()
            else:
                answer = await chat(client, user("hi"), tools=[a_tool()])
            assert answer.choices[0].finish_reason == "tool_calls"
            (call,) = answer.choices[0].message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
            echo = answer.choices[0].message.model_dump(exclude={"parsed"})
            for each in echo["tool_calls"]:
                each.pop("index", None)
                each["function"].pop("parsed_arguments", None)
            result = {"role": "tool", "tool_call_id": call.id, "content": "2"}
            await chat(client, user("hi"), echo, result, tools=[a_tool()])
            assert (await served.recording()).forks == ()
            await client.close()

    asyncio.run(scenario())


def test_a_stream_brings_the_answer_in_pieces_after_it_is_recorded() -> None:
    async def scenario() -> None:
        text = "<think>\nhm\n</think>\n\n" + "word " * 100
        limits = EndpointLimits(keep_alive_seconds=0.01)
        async with a_served_session(texts=[text + "<|im_end|>"], limits=limits) as served:
            served.calls.gate.clear()
            client = served.client()
            stream = await chat(client, user("hi"), stream=True, stream_options={"include_usage": True})
            assert served.session.num_turns == 0
            served.calls.gate.set()
            chunks = [chunk async for chunk in stream]
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
            assert "".join(delta.content or "" for delta in deltas) == "word " * 100
            assert "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas) == "hm"
            assert len(deltas) > 4
            assert chunks[-1].usage.completion_tokens == (await served.recording()).trained_tokens
            assert chunks[-2].choices[0].finish_reason == "stop"
            await client.close()

    asyncio.run(scenario())


def test_a_client_that_times_out_and_retries_joins_the_call_under_way() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            served.calls.gate.clear()
            client = served.client(timeout=1.0, max_retries=3)
            asking = asyncio.create_task(chat(client, user("hi")))
            await until(lambda: served.counted(Counted.REJOINED) > 0)
            served.calls.gate.set()
            assert (await asking).choices[0].message.content == "ok"
            recording = await served.recording()
            assert len(recording.turns) == len(served.calls.inputs) == 1
            assert recording.turns[0].untrained is None
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_to_a_client_that_left_is_undelivered_until_it_is_asked_again(is_stream: bool) -> None:
    async def scenario() -> None:
        limits = EndpointLimits(keep_alive_seconds=0.01)
        async with a_served_session(limits=limits) as served:
            served.calls.gate.clear()
            asking = asyncio.create_task(post(served, {"messages": [user("hi")], "stream": is_stream}))
            await until(lambda: served.calls.inputs)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: not served.num_connections)
            served.calls.gate.set()
            await until(lambda: served.session.num_turns == 1)
            with pytest.raises(SessionFailed, match="1 undelivered"):
                served.session.recording(str)
            status, answer = await post(served, {"messages": [user("hi")]})
            assert (status, answer["choices"][0]["message"]["content"]) == (200, "ok")
            recording = await served.recording()
            assert [turn.untrained for turn in recording.turns] == [None]
            assert recording.counts == {Counted.REJOINED: 1}

    asyncio.run(scenario())


def test_a_stream_left_in_its_middle_is_undelivered() -> None:
    async def scenario() -> None:
        limits = EndpointLimits(keep_alive_seconds=0.01)
        async with a_served_session(limits=limits) as served:
            served.calls.gate.clear()
            client = served.client()
            stream = await chat(client, user("hi"), stream=True)
            await stream.close()
            await client.close()
            await until(lambda: not served.num_connections)
            served.calls.gate.set()
            await until(lambda: served.session.num_turns == 1)
            await chat(other := served.client(), user("something else"))
            await other.close()
            assert [turn.untrained for turn in (await served.recording(undelivered=1)).turns] == [
                Untrained.UNDELIVERED,
                None,
            ]

    asyncio.run(scenario())


def test_the_same_question_after_a_whole_answer_is_a_new_call_unless_marked_as_retry() -> None:
    async def scenario() -> None:
        async with a_served_session(texts=["a<|im_end|>", "b<|im_end|>"]) as served:
            question = {"messages": [user("hi")]}
            said = [(await post(served, question))[1]["choices"][0]["message"]["content"] for _ in range(2)]
            assert said == ["a", "b"]
            _, again = await post(served, question, **{"x-stainless-retry-count": "1"})
            assert again["choices"][0]["message"]["content"] == "b"
            assert (await served.recording()).counts == {Counted.FORKS: 1, Counted.REJOINED: 1}

    asyncio.run(scenario())


def test_parallel_calls_are_all_recorded() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            client = served.client()
            await asyncio.gather(*(chat(client, user(f"task {number}")) for number in range(8)))
            recording = await served.recording()
            assert len(recording.turns) == 8
            assert len(recording.forks) == 7
            await client.close()

    asyncio.run(scenario())


def test_an_input_over_the_context_is_refused_as_clients_know_it() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            client = served.client()
            with pytest.raises(openai.BadRequestError) as refused:
                await chat(client, user("long " * 5000))
            assert refused.value.code == "context_length_exceeded"
            assert served.counted(Counted.OVERLONG) == 1
            assert (await chat(client, user("hi"))).choices[0].message.content == "ok"
            await client.close()

    asyncio.run(scenario())


def test_a_budget_that_is_used_up_is_refused_without_retries() -> None:
    async def scenario() -> None:
        async with a_served_session(turns=1) as served:
            client = served.client(max_retries=5)
            await chat(client, user("hi"))
            with pytest.raises(openai.PermissionDeniedError):
                await chat(client, user("more"))
            assert (await served.recording()).is_cut
            await client.close()

    asyncio.run(scenario())


def test_max_tokens_is_the_least_of_what_is_asked_and_what_is_left() -> None:
    async def scenario() -> None:
        async with a_served_session(texts=["abcdefgh<|im_end|>"], tokens=10) as served:
            _, answer = await post(served, {"messages": [user("hi")], "max_tokens": 4})
            assert answer["choices"][0]["finish_reason"] == "length"
            await post(served, {"messages": [user("hi")], "max_completion_tokens": 100})
            assert [most for _, most, _ in served.calls.asked] == [4, 6]

    asyncio.run(scenario())


def test_sampling_of_the_agent_is_overridden_and_counted_and_constraints_are_untrained() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            client = served.client()
            await chat(client, user("a"), temperature=0, seed=7)
            await chat(client, user("b"), response_format={"type": "json_object"})
            await chat(client, user("c"), tools=[a_tool()], tool_choice="required")
            recording = await served.recording()
            assert [turn.untrained for turn in recording.turns] == [
                None,
                Untrained.CONSTRAINED,
                Untrained.CONSTRAINED,
            ]
            assert recording.counts[Counted.OVERRIDDEN] == 1
            assert recording.counts[Counted.CONSTRAINED] == 2
            await client.close()

    asyncio.run(scenario())


def test_a_stop_text_ends_the_answer_and_all_that_was_sampled_is_recorded() -> None:
    async def scenario() -> None:
        async with a_served_session(texts=["yes STOP"]) as served:
            _, answer = await post(served, {"messages": [user("hi")], "stop": " STOP"})
            assert answer["choices"][0]["message"]["content"] == "yes"
            assert served.calls.asked[0][2] == (" STOP",)
            recording = await served.recording()
            assert recording.counts == {Counted.STOP_STRING: 1}
            assert recording.trained_tokens == answer["usage"]["completion_tokens"]

    asyncio.run(scenario())


def test_text_completions_go_on_from_recorded_ids() -> None:
    async def scenario() -> None:
        async with a_served_session(texts=["the  we", "ather"]) as served:
            client = served.client()
            first = await client.completions.create(model="any", prompt="say:")
            text = "say:" + first.choices[0].text + "ath"
            await client.completions.create(model="any", prompt=text)
            recording = await served.recording()
            assert recording.forks == ()
            assert recording.counts == {Counted.SOFT_BOUNDARY: 1}
            ids = [*served.calls.inputs[1], 5]
            await client.completions.create(model="any", prompt=ids)
            assert served.calls.inputs[2] == ids
            await served.recording()
            await client.close()

    asyncio.run(scenario())


def test_a_worker_that_leaves_says_so_and_the_retry_is_a_call_of_its_own() -> None:
    async def scenario() -> None:
        async with a_served_session(texts=[Leaving("the worker leaves"), "ok<|im_end|>"]) as served:
            assert (await post(served, {"messages": [user("a")]}))[0] == 503
            retried = await post(served, {"messages": [user("a")]}, **{"x-stainless-retry-count": "1"})
            assert retried[0] == 200
            assert len((await served.recording()).turns) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_error_of_the_engine_fails_the_session(is_stream: bool) -> None:
    async def scenario() -> None:
        async with a_served_session(texts=[EngineError("no memory")]) as served:
            status, answer = await post(served, {"messages": [user("a")], "stream": is_stream})
            assert status == 410
            assert "no memory" in answer["error"]["message"]
            assert (await post(served, {"messages": [user("b")]}))[0] == 410
            assert served.session.failure is not None
            assert served.session.failure.name == "EngineError"

    asyncio.run(scenario())


def test_an_error_after_a_stream_has_begun_is_an_event_of_it() -> None:
    async def scenario() -> None:
        limits = EndpointLimits(keep_alive_seconds=0.01)
        async with a_served_session(texts=[EngineError("no memory")], limits=limits) as served:
            served.calls.gate.clear()
            client = served.client()
            stream = await chat(client, user("hi"), stream=True)
            served.calls.gate.set()
            with pytest.raises(openai.APIError, match="no memory"):
                async for _ in stream:
                    pass
            await client.close()

    asyncio.run(scenario())


def test_ending_a_session_cancels_its_calls() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            served.calls.gate.clear()
            asking = asyncio.create_task(post(served, {"messages": [user("a")]}))
            await until(lambda: served.calls.inputs)
            await served.endpoint.end(session_name)
            assert (await asking)[0] == 410
            assert served.session.num_turns == 0

    asyncio.run(scenario())


def test_sessions_do_not_see_each_other() -> None:
    async def scenario() -> None:
        async with a_served_session() as served, a_served_session() as other:
            assert (await post(other, {"messages": [user("a")]}, Authorization=f"Bearer {served.key}"))[
                0
            ] == 401
            assert served.key != other.key
            assert len(served.key) == 64

    asyncio.run(scenario())


def test_without_a_certificate_the_endpoint_listens_on_loopback_only() -> None:
    with pytest.raises(ConfigError, match="loopback only"):
        Listening(host="0.0.0.0").bound()


class WatchedCalls:
    """Remembers what an engine was asked and what it said."""

    def __init__(self, calls: PolicyCalls) -> None:
        self._calls = calls
        self.turns: list[tuple[list[int], list[int]]] = []

    async def generate(
        self, session: str, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]
    ) -> Generation:
        turn = await self._calls.generate(session, input_ids, max_tokens, stop)
        self.turns.append((list(input_ids), turn.token_ids.tolist()))
        return turn


def test_an_agent_on_the_simulated_engine_is_recorded_as_the_engine_saw_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = SimulatedEngine(vocabulary_size=300, end_token_id=1, tokens_per_second=1e6)
        save_file({"weight": np.zeros(1, dtype="f4")}, tmp_path / "weights")
        await engine.load_weights(tmp_path / "weights", 3)
        sampling = SamplingParameters(temperature=1.0, max_tokens=8)
        text_of = TextTokens(a_chat_tokenizer()).text
        calls = WatchedCalls(EnginePolicy(engine, sampling, seed=7, text_of=text_of))
        async with a_served_session(calls) as served:
            client = served.client()
            messages: list[dict[str, Any]] = []
            for number in range(5):
                messages.append(user(f"question {number}"))
                answer = await chat(client, *messages, max_tokens=8)
                messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            await client.close()
            recording = served.session.recording(str)
            assert recording.forks == ()
            assert [segment.version for segment in recording.rows.segments] == [3]
            ids, first = recording.ids(0), len(recording.rows.context)
            assert [
                (ids[: first + turn.start], ids[first + turn.start : first + turn.end])
                for turn in recording.turns
            ] == calls.turns

    asyncio.run(scenario())
