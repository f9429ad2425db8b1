"""Agents that a test's worker runs in processes of their own, and what a test makes them of."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai  # noqa: F401  # imported once, before the processes of sessions are forked

if TYPE_CHECKING:
    from producers.agents.given import AgentTask, PolicyAccess


async def two_calls(task: AgentTask, policy: PolicyAccess) -> str:
    """Asks, and asks about the answer."""
    async with policy.async_openai() as client:
        messages: list[dict[str, Any]] = list(task.messages)
        first = await client.chat.completions.create(model="any", messages=messages, temperature=0)
        messages += [first.choices[0].message.model_dump(exclude_none=True), _user("and?")]
        second = await client.chat.completions.create(model="any", messages=messages)
        return f"said {second.choices[0].message.content}"


def forgets(task: AgentTask, policy: PolicyAccess) -> dict[str, Any]:
    """Asks twice about different things, so that the second call forks, and rewards itself."""
    with policy.openai() as client:
        for text in (task.text, "another thing"):
            client.chat.completions.create(model="any", messages=[_user(text)])
    return {"reward": 2.5, "components": {"calls": 2}, "turn_rewards": [0.5, 2.0]}


def asks_for_ever(task: AgentTask, policy: PolicyAccess) -> None:
    """Goes on until it is refused."""
    messages = list(task.messages)
    with policy.openai(max_retries=0) as client:
        while True:
            answer = client.chat.completions.create(model="any", messages=messages)
            messages += [answer.choices[0].message.model_dump(exclude_none=True), _user("more")]


async def never_heeds_a_refusal(task: AgentTask, policy: PolicyAccess) -> None:
    """Asks again whatever it is told."""
    async with policy.async_openai(max_retries=0) as client:
        while True:
            try:
                await client.chat.completions.create(model="any", messages=task.messages)
            except Exception:  # noqa: BLE001  # it is that kind of agent
                await asyncio.sleep(0.05)


async def parallel(task: AgentTask, policy: PolicyAccess) -> str:
    """Four calls at once."""
    async with policy.async_openai() as client:
        asked = [
            client.chat.completions.create(model="any", messages=[*task.messages, _user(str(at))])
            for at in range(4)
        ]
        return f"{len(await asyncio.gather(*asked))} answers"


def asks_nothing(task: AgentTask, policy: PolicyAccess) -> str:
    del task, policy
    return "done"


def raises(task: AgentTask, policy: PolicyAccess) -> None:
    with policy.openai() as client:
        client.chat.completions.create(model="any", messages=task.messages)
    raise KeyError("board")


def dies(task: AgentTask, policy: PolicyAccess) -> None:
    with policy.openai() as client:
        client.chat.completions.create(model="any", messages=task.messages)
    os._exit(3)


def hangs(task: AgentTask, policy: PolicyAccess) -> None:
    """Starts a process in a group of its own, says who it is, and waits for ever."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(task.fields["pids"]).write_text(f"{os.getpid()} {child.pid}", encoding="ascii")
    with policy.openai() as client:
        client.chat.completions.create(model="any", messages=task.messages)
    time.sleep(600)


def returns_an_object(task: AgentTask, policy: PolicyAccess) -> object:
    del task, policy
    return object()


def knows_its_task(task: AgentTask, policy: PolicyAccess) -> str:
    with policy.openai() as client:
        client.chat.completions.create(model="any", messages=task.messages)
    inherited = sorted(name for name in os.environ if "SECRET" in name)
    return (
        f"{task.prompt_id} {task.text} {task.fields} {task.seed} {inherited} {os.environ['OPENAI_BASE_URL']}"
    )


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
