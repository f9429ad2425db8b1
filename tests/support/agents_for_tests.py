"""Agents that a test's worker runs in processes of their own. Most speak plain HTTP, which is quickly imported."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.agents.given import AgentTask, PolicyAccess

Message = dict[str, Any]


def ask(policy: PolicyAccess, messages: Sequence[Message], **options: object) -> Message:
    """One call; the answer as a message."""
    request = urllib.request.Request(  # the worker's own address
        f"{policy.base_url}/chat/completions",
        data=json.dumps({"model": "any", "messages": list(messages), **options}).encode(),
        headers={"Authorization": f"Bearer {policy.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        message: Message = json.load(response)["choices"][0]["message"]
    return message


def user(text: str) -> Message:
    return {"role": "user", "content": text}


async def two_calls(task: AgentTask, policy: PolicyAccess) -> str:
    """Asks, and asks about the answer."""
    messages = list(task.messages)
    first = ask(policy, messages, temperature=0)
    return f"said {ask(policy, [*messages, first, user('and?')])['content']}"


def eight_calls_again_where_a_connection_breaks(task: AgentTask, policy: PolicyAccess) -> str:
    """Asks eight times about all that was said, and again as long as nobody answers."""
    messages = list(task.messages)
    for number in range(8):
        answer = None
        while answer is None:
            try:
                answer = ask(policy, messages)
            except (urllib.error.URLError, OSError, http.client.HTTPException):
                time.sleep(0.05)
        messages += [answer, user(f"and {number}?")]
    return str(messages[-2]["content"])


async def two_calls_of_the_openai_client(task: AgentTask, policy: PolicyAccess) -> str:
    async with policy.async_openai() as client:
        messages: list[Any] = list(task.messages)
        first = await client.chat.completions.create(model="any", messages=messages)
        messages += [first.choices[0].message.model_dump(exclude_none=True), user("and?")]
        second = await client.chat.completions.create(model="any", messages=messages)
        return f"said {second.choices[0].message.content}"


def forgets(task: AgentTask, policy: PolicyAccess) -> dict[str, Any]:
    """Asks twice about different things, so that the second call forks, and rewards itself."""
    for text in (task.text, "another thing"):
        ask(policy, [user(text)])
    return {"reward": 2.5, "components": {"calls": 2}, "turn_rewards": [0.5, 2.0]}


def asks_for_ever(task: AgentTask, policy: PolicyAccess) -> None:
    """Goes on until it is refused."""
    messages = list(task.messages)
    while True:
        messages += [ask(policy, messages), user("more")]


def never_heeds_a_refusal(task: AgentTask, policy: PolicyAccess) -> None:
    """Asks again whatever it is told."""
    while True:
        try:
            ask(policy, task.messages)
        except urllib.error.HTTPError:
            time.sleep(0.05)


def parallel(task: AgentTask, policy: PolicyAccess) -> str:
    """Four calls at once."""
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, policy, [*task.messages, user(str(at))]) for at in range(4)]
        return f"{len([each.result() for each in asked])} answers"


def asks_nothing(task: AgentTask, policy: PolicyAccess) -> str:
    del task, policy
    return "done"


def raises(task: AgentTask, policy: PolicyAccess) -> None:
    ask(policy, task.messages)
    raise KeyError("board")


def dies(task: AgentTask, policy: PolicyAccess) -> None:
    ask(policy, task.messages)
    os._exit(3)


def hangs(task: AgentTask, policy: PolicyAccess) -> None:
    """Starts a process in a group of its own, says who it is, and waits for ever."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    written = Path(task.fields["pids"])
    written.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}", encoding="ascii")
    written.with_suffix(".part").rename(written)
    ask(policy, task.messages)
    time.sleep(600)


def returns_an_object(task: AgentTask, policy: PolicyAccess) -> object:
    del task, policy
    return object()


def knows_its_task(task: AgentTask, policy: PolicyAccess) -> str:
    ask(policy, task.messages)
    inherited = sorted(name for name in os.environ if "SECRET" in name)
    return (
        f"{task.prompt_id} {task.text} {task.fields} {task.seed} {inherited} {os.environ['OPENAI_BASE_URL']}"
    )


def many_calls(task: AgentTask, policy: PolicyAccess) -> str:
    """Asks as often as told, one call after the other, and stays where told until a file is there."""
    messages = list(task.messages)
    for number in range(task.fields["calls"]):
        if number == task.fields.get("stays_at"):
            while not Path(task.fields["until"]).exists():
                time.sleep(0.02)
        messages += [ask(policy, messages), user(f"and then {number}?")]
    return "done"
