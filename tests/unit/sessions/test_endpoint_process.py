"""The policy endpoint's process: killed, stopped, broken, and asked for more than it can do in time."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import ssl
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from support.certificates import a_certificate
from support.chat_models import a_policy
from support.chatting_agent import user
from support.served_session import Served, a_served_session, budget, endpoint_process, served_by, until

from producers.processes.ending import process_tree
from producers.sessions.listening import Listening
from producers.sessions.process import EndpointProcess, PolicySource
from producers.sessions.recorder import Session
from producers.sessions.recording import Counted
from rollog.kernel.errors import ConfigError, DataError, EndpointDied
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from producers.sessions.live import Policy

_here = "unit.sessions.test_endpoint_process"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _in_a_process() -> Iterator[None]:
    token = served_by.set(endpoint_process)
    yield
    served_by.reset(token)


def pid_of(served: Served) -> int:
    assert isinstance(served.endpoint, EndpointProcess)
    assert served.endpoint.pid is not None
    return served.endpoint.pid


async def killed(served: Served) -> None:
    """SIGKILL for the process that serves now."""
    await until(lambda: isinstance(served.endpoint, EndpointProcess) and served.endpoint.pid is not None)
    os.kill(pid_of(served), signal.SIGKILL)


async def chat(client: Any, *messages: dict[str, Any], **options: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=list(messages), **options)


def test_a_conversation_over_killed_processes_is_one_sequence_of_exact_ids() -> None:
    async def scenario() -> None:
        texts: list[str | Exception] = [
            f"<think>\nhm {number}\n</think>\n\nno {number}<|im_end|>" for number in range(6)
        ]
        async with a_served_session(texts=texts) as served:
            client = served.client(max_retries=5, timeout=60.0)
            messages: list[dict[str, Any]] = []
            for number in range(6):
                messages.append(user(f"question {number}"))
                answer = await chat(client, *messages)
                assert answer.choices[0].message.content == f"no {number}"
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                await until(partial(served.session.is_delivered, number))
                if number % 2:
                    await killed(served)
            recording = await served.recording()
            assert recording.forks == ()
            assert [turn.untrained for turn in recording.turns] == [None] * 6
            assert served.endpoint.num_starts >= 3  # type: ignore[attr-defined]
            await client.close()

    asyncio.run(scenario())


def test_a_call_under_way_goes_on_when_the_process_is_killed_and_its_retry_joins_it() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            served.calls.gate.clear()
            client = served.client(max_retries=5, timeout=60.0)
            asking = asyncio.create_task(chat(client, user("hi")))
            await until(lambda: served.calls.inputs)
            await killed(served)
            await until(lambda: served.counted(Counted.REJOINED) > 0, 60.0)
            served.calls.gate.set()
            assert (await asking).choices[0].message.content == "ok"
            assert len((await served.recording()).turns) == len(served.calls.inputs) == 1
            await client.close()

    asyncio.run(scenario())


@contextmanager
def served_with(**options: Any) -> Iterator[None]:
    """Processes with these options."""
    token = served_by.set(partial(endpoint_process, **options))
    try:
        yield
    finally:
        served_by.reset(token)


def test_a_process_that_is_stopped_is_replaced_and_one_that_works_is_not() -> None:
    async def scenario() -> None:
        with served_with(silence_seconds=1.0):
            async with a_served_session() as served:
                client = served.client(max_retries=5, timeout=60.0)
                await chat(client, user("a"))
                stopped = pid_of(served)
                # Several times as long as it may be silent.
                await asyncio.sleep(3.0)
                assert pid_of(served) == stopped
                os.kill(stopped, signal.SIGSTOP)
                assert (await chat(client, user("b"))).choices[0].message.content == "ok"
                assert not exists(stopped)
                await client.close()

    asyncio.run(scenario())


def test_a_worker_that_was_held_up_replaces_no_process_that_works() -> None:
    async def scenario() -> None:
        with served_with(silence_seconds=1.0):
            async with a_served_session() as served:
                pid = pid_of(served)
                for _ in range(2):
                    time.sleep(2.5)  # noqa: ASYNC251  # the worker's loop, which hears nothing meanwhile
                    await asyncio.sleep(0.3)
                assert pid_of(served) == pid

    asyncio.run(scenario())


def test_sessions_opened_and_ended_while_there_is_no_process_are_served_and_refused() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            endpoint = served.endpoint
            assert isinstance(endpoint, EndpointProcess)
            before = await served.another("g0.r1.a0")
            await killed(served)
            await until(lambda: endpoint.pid is None)
            during = await served.another("g0.r2.a0")
            await endpoint.end("g0.r1.a0")
            await asyncio.gather(endpoint.end("g0.r0.a0"), endpoint.end("g0.r0.a0"))
            await until(lambda: endpoint.pid is not None, 60.0)
            question = {"messages": [user("hi")]}
            assert [(await post(served, question, key=key))[0] for key in (before, served.key, during)] == [
                410,
                410,
                200,
            ]

    asyncio.run(scenario())


def test_a_worker_that_closes_while_a_process_is_stopped_leaves_none() -> None:
    async def scenario() -> None:
        with served_with(silence_seconds=1.0):
            async with a_served_session() as served:
                stopped = pid_of(served)
                os.kill(stopped, signal.SIGSTOP)
                await until(lambda: served.endpoint.pid is None)  # type: ignore[attr-defined]
        await until(lambda: not exists(stopped))

    asyncio.run(scenario())


def test_what_cannot_be_read_of_a_request_is_told_without_its_key(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> str:
        async with a_served_session() as served:
            host, port = served.address.removeprefix("http://").split(":")
            for text in (
                f"GET /s/{served.key}/v1/mod els HTTP/1.1\r\nHost: localhost\r\n\r\n",
                f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.key}\x01\r\n\r\n",
                f"GET /s/{served.key}/v1/models HTTP/9.x\r\nHost: localhost\r\n\r\n",
            ):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(text.encode())
                assert b" 400 " in await reader.readline()
                writer.close()
            return served.key

    key = asyncio.run(scenario())
    shown = capfd.readouterr()
    assert key not in shown.out + shown.err
    assert "Traceback" not in shown.err


def gated_policy(gate: str) -> Policy:
    """One that renders nothing before that file is there."""
    policy = a_policy()
    render = policy.renderer.render

    def wait(conversation: Any, said: Any) -> Any:
        while not Path(gate).exists():
            time.sleep(0.01)
        return render(conversation, said)

    policy.renderer.render = wait  # type: ignore[method-assign]
    return policy


def test_requests_that_wait_to_be_rendered_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = tmp_path / "gate"
        source = PolicySource(function=f"{_here}:gated_policy", arguments={"gate": str(gate)})
        token = served_by.set(partial(EndpointProcess, source))
        try:
            async with a_served_session(parallel_calls=2) as served:
                asking = [
                    asyncio.create_task(post(served, {"messages": [user(f"{number}")]}))
                    for number in range(12)
                ]
                await until(lambda: sum(each.done() for each in asking) == 8, 60.0)
                assert {each.result()[0] for each in asking if each.done()} == {429}
                other = asyncio.create_task(
                    post(served, {"messages": [user("other")]}, key=await served.another())
                )
                gate.touch()
                assert (await other)[0] == 200
                statuses = [(await each)[0] for each in asking]
                assert statuses.count(429) >= 8
                assert statuses.count(200) >= 1
        finally:
            served_by.reset(token)

    asyncio.run(scenario())


def test_a_start_that_is_cancelled_before_it_is_connected_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        connecting = asyncio.Event()

        async def never(**_: Any) -> None:
            connecting.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio, "open_connection", never)
        endpoint = endpoint_process()
        before = set(process_tree(os.getpid()))
        starting = asyncio.create_task(endpoint.start())
        await connecting.wait()
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert set(process_tree(os.getpid())) <= before
        await endpoint.close()

    asyncio.run(scenario())


def test_a_worker_that_closes_leaves_no_process_and_no_socket() -> None:
    async def scenario() -> None:
        endpoint = endpoint_process(has_socket=True)
        await endpoint.start()
        pid, path = endpoint.pid, endpoint.socket_path
        assert pid is not None
        assert path is not None
        assert path.exists()
        await endpoint.close()
        await endpoint.close()
        assert not exists(pid)
        assert not path.exists()

    asyncio.run(scenario())


def broken_policy() -> Policy:
    raise DataError("no tokenizer here; name one")


def unset_policy() -> Policy:
    raise ConfigError("no such parser; name another")


def dying_policy() -> Policy:
    os._exit(9)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("broken_policy", DataError, "no tokenizer here; name one"),
        ("unset_policy", ConfigError, "no such parser; name another"),
        ("dying_policy", DataError, "ended with status 9 before it served"),
    ],
)
def test_a_policy_that_cannot_be_made_says_why_at_the_start(
    function: str, error: type[Exception], words: str
) -> None:
    async def scenario() -> None:
        endpoint = EndpointProcess(PolicySource(function=f"{_here}:{function}"))
        with pytest.raises(error, match=words):
            await endpoint.start()
        await endpoint.close()

    asyncio.run(scenario())


def test_a_process_that_is_killed_before_it_serves_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        arguments = {"path": str(tmp_path / "once"), "signal_number": int(signal.SIGKILL)}
        endpoint = EndpointProcess(
            PolicySource(function=f"{_here}:policy_the_second_time", arguments=arguments)
        )
        await endpoint.start()
        assert endpoint.num_starts == 2
        await endpoint.close()

    asyncio.run(scenario())


def policy_the_second_time(path: str, signal_number: int) -> Policy:
    """The end of the first process, and a policy for every other."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal_number)
    return a_policy()


def test_a_process_that_dies_again_and_again_ends_its_sessions(tmp_path: Any) -> None:
    async def scenario() -> None:
        once = tmp_path / "once"
        source = PolicySource(function=f"{_here}:policy_once", arguments={"path": str(once)})
        token = served_by.set(lambda **options: EndpointProcess(source, **options))
        try:
            async with a_served_session() as served:
                await killed(served)
                await until(lambda: served.worker.losses, 60.0)
                with pytest.raises(EndpointDied, match=r"6 times in a row, at last because: .*status 9"):
                    await served.endpoint.open("g1.r0.a0", Session(budget), served.worker)
        finally:
            served_by.reset(token)

    asyncio.run(scenario())


def policy_once(path: str) -> Policy:
    """A policy for the first process, and the end of every other."""
    if Path(path).exists():
        os._exit(9)
    Path(path).touch()
    return a_policy()


def test_a_request_that_fits_into_no_context_is_refused_before_it_is_rendered() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            text = "the weather in Paris " * ((7 << 20) // 21)
            status, body = await post(served, {"messages": [user(text)]})
            assert status == 400
            assert "fit into no context" in body["error"]["message"]
            assert served.session.is_out_of_room
            assert served.counted(Counted.OVERLONG) == 1

    asyncio.run(scenario())


async def post(
    served: Served, body: object, *, host: str | None = None, key: str | None = None, **options: Any
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key or served.key}"} | ({} if host is None else {"Host": host})
    data, address = io.BytesIO(json.dumps(body).encode()), f"{served.address}/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(address, data=data, headers=headers, **options) as response,
    ):
        return response.status, json.loads(await response.text())


def test_no_key_stands_in_the_command_line_or_environment_of_the_process() -> None:
    async def scenario() -> None:
        async with a_served_session() as served:
            directory = Path(f"/proc/{pid_of(served)}")
            for name in ("cmdline", "environ"):
                assert served.key.encode() not in (directory / name).read_bytes()

    asyncio.run(scenario())


def test_with_a_certificate_the_endpoint_speaks_https_at_its_public_name(tmp_path: Path) -> None:
    certificate, private_key = a_certificate(tmp_path)
    listening = Listening(
        host="0.0.0.0", public_host="localhost", certfile=str(certificate), keyfile=str(private_key)
    )

    async def scenario() -> None:
        token = served_by.set(partial(endpoint_process, listening=listening))
        try:
            async with a_served_session() as served:
                assert served.address.startswith("https://localhost:")
                trusted = ssl.create_default_context(cafile=str(certificate))
                question = {"messages": [user("hi")]}
                assert (await post(served, question, ssl=trusted))[0] == 200
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await post(served, question)
                status, body = await post(served, question, ssl=trusted, host="another.example")
                assert (status, body["error"]["code"]) == (400, "invalid_host")
        finally:
            served_by.reset(token)

    asyncio.run(scenario())


@pytest.mark.parametrize("flaw", ["missing", "sealed", "of another"])
def test_a_certificate_that_cannot_be_used_is_told_at_the_start(tmp_path: Path, flaw: str) -> None:
    certificate, private_key = a_certificate(tmp_path, passphrase=b"secret" if flaw == "sealed" else None)
    if flaw == "missing":
        private_key.unlink()
    if flaw == "of another":
        (tmp_path / "other").mkdir()
        _, private_key = a_certificate(tmp_path / "other")
    listening = Listening(certfile=str(certificate), keyfile=str(private_key))

    async def scenario() -> None:
        endpoint = endpoint_process(listening=listening)
        with pytest.raises(ConfigError, match="belong together, the key without a passphrase"):
            await endpoint.start()
        await endpoint.close()

    asyncio.run(scenario())
