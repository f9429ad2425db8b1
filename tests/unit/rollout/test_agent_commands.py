"""Agents that are programs: in a sandbox that leads to the endpoint alone, and, where that is wanted, without one."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from support.agent_sessions import Asked, a_session, agents_of, an_engine, check_sample, served
from support.served_session import endpoint_process, local_endpoint
from support.worker_thread import Stage, a_stage

from producers.agents.choice import agent_runner
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.settings.agent import AgentConfig
from schemas import Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from producers.rollout.agents import Agents

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

asks = """
import json, os, socket, sys, urllib.request
task = json.load(sys.stdin)
def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "any", "messages": messages}).encode(),
        headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]
messages = [{"role": "user", "content": sys.argv[1]}]
answer = ask(messages)
ask([*messages, answer, {"role": "user", "content": "and?"}])
try:
    socket.create_connection(("127.0.0.1", int(task["fields"]["port"])), timeout=5)
    reached = "reached"
except OSError:
    reached = "not reached"
print(task["prompt_id"], sys.argv[1], answer["content"], reached, sorted(n for n in os.environ if "SECRET" in n))
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with a_stage(MemoryBroker(), RunTopics("rollog", "first"), tmp_path) as stage:
        yield stage


def commands(script: str, sandbox: str = "required", **changes: float) -> Agents:
    command = ("python3", "-c", script, "{prompt}")
    config = AgentConfig.model_validate({"command": command, "sandbox": sandbox, "timeout_seconds": 60})
    endpoint = endpoint_process(has_socket=True) if sandbox == "required" else local_endpoint()
    return agents_of(agent_runner(config, endpoint.socket_path), endpoint, **changes)


@pytest.mark.parametrize(("sandbox", "reached"), [("required", "not reached"), ("none", "reached")])
def test_a_command_asks_the_endpoint_and_in_a_sandbox_reaches_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, sandbox: str, reached: str
) -> None:
    monkeypatch.setenv("WORKERS_SECRET", "x")
    asked = Asked()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = a_session(stage, port=listener.getsockname()[1])
        (sample,) = served(stage, commands(asks, sandbox), task, engine=an_engine(asked=asked))
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert sample.response_text == f"{task.prompt.prompt_id} hi yes {reached} []"
    assert (len(sample.turns), sample.forks) == (2, ())
    check_sample(sample, asked)


@pytest.mark.parametrize("sandbox", ["required", "none"])
def test_a_command_that_fails_fails_its_session_with_what_it_said(stage: Stage, sandbox: str) -> None:
    script = "import sys; sys.exit('no such board')"
    (sample,) = served(stage, commands(script, sandbox), a_session(stage))
    assert sample.error_class == "AgentFailed"
    assert "ended with status 1: no such board" in (sample.error_message or "")


@pytest.mark.parametrize("sandbox", ["required", "none"])
def test_a_command_that_hangs_is_ended_at_its_time(stage: Stage, sandbox: str) -> None:
    script = "import time; time.sleep(600)"
    (sample,) = served(stage, commands(script, sandbox, timeout_seconds=8.0), a_session(stage))
    assert sample.error_class == "AgentTimedOut"


@pytest.mark.parametrize("sandbox", ["required", "none"])
def test_a_prompt_that_no_command_line_can_hold_fails_its_session_alone(stage: Stage, sandbox: str) -> None:
    tasks = [a_session(stage, group=0, text="a\0b"), a_session(stage, group=1)]
    samples = served(stage, commands("print('done')", sandbox), *tasks)
    assert [sample.error_class for sample in samples] == ["AgentFailed", "no_trainable_turn"]
    assert "null byte" in (samples[0].error_message or "")
