"""What the policy endpoint refuses, with its reason, and what it bounds."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from contextlib import suppress

import pytest
from support.chatting_agent import user
from support.served_session import Served, a_served_session, post, session_name, until

from producers.sessions.endpoint_limits import EndpointLimits
from producers.sessions.errors import BadRequest
from producers.sessions.recording import Counted
from producers.sessions.requests import body_of

pytestmark = pytest.mark.usefixtures("_endpoint_kind")

refused: list[tuple[object, str]] = [
    (b"{", "no JSON"),
    (b'{"messages": NaN}', "no JSON"),
    (b'{"messages": "\\ud800"}', "no JSON"),
    ([], "no JSON object"),
    (b'{"messages": ' + b"[" * 100_000, "no JSON"),
    (b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}", "64 levels"),
    ({}, "messages is empty"),
    ({"messages": [user("hi")], "n": 2}, "n is 2"),
    ({"messages": [user("hi")], "max_tokens": 0}, "at least 1"),
    ({"messages": [user("hi")], "stop": 7}, "stop is neither"),
    ({"messages": [user("hi")], "stop": [""]}, "empty one"),
    ({"messages": [user("hi")], "stop": ["x"] * 17}, "17 texts"),
    ({"messages": [user("hi")], "tools": "x"}, "tools is no list"),
    ({"messages": [user("hi")], "chat_template_kwargs": 1}, "chat_template_kwargs"),
    ({"messages": [user("hi")], "modalities": ["audio"]}, "modalities"),
    ({"messages": [user("hi")], "audio": {"voice": "x"}}, "audio is not served"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "images"),
]


@pytest.mark.parametrize(("body", "words"), refused)
def test_what_is_not_served_is_refused_with_the_reason_and_counted(body: object, words: str) -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            status, answer = await post(served, body)
            assert status == 400
            assert words in answer["error"]["message"]
            assert served.counted(Counted.REFUSED) == 1
            assert not served.calls.inputs

    asyncio.run(scenario())


@pytest.mark.parametrize("prompt", ["", [], [1, 999_999], [-1], [True], ["a", "b"], {"a": 1}, None])
def test_prompts_that_are_none_are_refused(prompt: object) -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            assert (await post(served, {"prompt": prompt}, "/v1/completions"))[0] == 400

    asyncio.run(scenario())


def test_more_lists_than_a_request_needs_are_refused_before_they_are_made() -> None:
    body = b'{"messages":[' + b"[]," * (1 << 18) + b"[]]}"
    with pytest.raises(BadRequest, match="more than 262144 opening brackets"):
        body_of(body)


def test_wrong_keys_routes_hosts_and_sizes_have_their_statuses() -> None:
    async def scenario() -> None:
        async with a_served_session(limits=EndpointLimits(request_bytes=1000)) as served:
            question = {"messages": [user("hi")]}
            assert (await post(served, question, Authorization="Bearer nobody"))[0] == 401
            assert (await post(served, question, Authorization=""))[0] == 401
            assert (await post(served, question, "/s/nobody/v1/chat/completions"))[0] == 401
            assert (await post(served, question, "/inference/v1/generate"))[0] == 404
            assert (await post(served, question, "/v1/reward"))[0] == 404
            assert (await post(served, question, Host="evil.example"))[0] == 400
            assert (await post(served, {"messages": [user("x" * 2000)]}))[0] == 413
            assert (await post(served, question))[0] == 200
            await served.endpoint.end(session_name)
            assert (await post(served, question))[0] == 410

    asyncio.run(scenario())


def test_more_parallel_calls_than_allowed_are_told_to_wait() -> None:
    async def scenario() -> None:
        async with a_served_session(parallel_calls=1) as served:
            served.calls.gate.clear()
            first = asyncio.create_task(post(served, {"messages": [user("a")]}))
            await until(lambda: served.calls.inputs)
            assert (await post(served, {"messages": [user("b")]}))[0] == 429
            served.calls.gate.set()
            assert (await first)[0] == 200

    asyncio.run(scenario())


async def a_begun_upload(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request with the session's key whose body does not come."""
    host, port = served.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {served.key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{".encode()
    )
    return reader, writer


async def first_line(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readline(), 20)


def test_a_session_that_sends_many_bodies_at_once_is_told_to_wait_and_the_others_are_served() -> None:
    async def scenario() -> None:
        async with a_served_session(parallel_calls=2) as served:
            begun = [await a_begun_upload(served) for _ in range(4)]
            reader, writer = await a_begun_upload(served)
            lines = [asyncio.create_task(first_line(each)) for each, _ in [*begun, (reader, writer)]]
            done, _ = await asyncio.wait(lines, return_when=asyncio.FIRST_COMPLETED)
            assert [each.result() for each in done] == [b"HTTP/1.1 429 Too Many Requests\r\n"]
            other = await served.another()
            question = {"messages": [user("hi")]}
            assert (await post(served, question, Authorization=f"Bearer {other}"))[0] == 200
            for _, each in [*begun, (reader, writer)]:
                each.close()
            await asyncio.wait(lines)
            assert (await post(served, question))[0] == 200

    asyncio.run(scenario())


def test_more_connections_than_there_is_room_for_are_closed_at_once() -> None:
    async def scenario() -> None:
        async with a_served_session(limits=EndpointLimits(connections=3)) as served:
            held = [await a_begun_upload(served) for _ in range(3)]
            await until(lambda: served.num_connections == 3)
            reader, writer = await a_begun_upload(served)
            with suppress(ConnectionError):
                assert await first_line(reader) == b""
            await until(lambda: served.num_connections == 3)
            for _, each in [*held, (reader, writer)]:
                each.close()
            await until(lambda: served.num_connections == 0)
            assert (await post(served, {"messages": [user("hi")]}))[0] == 200

    asyncio.run(scenario())


def test_connections_that_come_all_at_once_are_bounded_as_well() -> None:
    async def scenario() -> None:
        async with a_served_session(limits=EndpointLimits(connections=3)) as served:
            host, port = served.address.removeprefix("http://").split(":")
            sockets = [socket.socket() for _ in range(20)]
            for each in sockets:
                # Not asynchronous: the fake endpoint accepts them only afterwards, in one turn of its loop.
                each.connect((host, int(port)))
            await until(lambda: served.num_connections == 3)
            for each in sockets:
                each.close()
            await until(lambda: served.num_connections == 0)

    asyncio.run(scenario())


def test_a_request_that_waits_for_its_answer_holds_its_body_no_longer() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            served.calls.gate.clear()
            body = json.dumps({"messages": [user("hi")], "user": "x" * 900_000}).encode()
            asking = [asyncio.create_task(post(served, body))]
            await until(lambda: served.calls.inputs)
            tracemalloc.start()
            try:
                asking += [asyncio.create_task(post(served, body)) for _ in range(20)]
                await until(lambda: served.counted(Counted.REJOINED) == 20)
                assert tracemalloc.get_traced_memory()[0] < 10 << 20
            finally:
                tracemalloc.stop()
            served.calls.gate.set()
            assert {each[0] for each in await asyncio.gather(*asking)} == {200}

    asyncio.run(scenario())
