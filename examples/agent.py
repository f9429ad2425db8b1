"""An agent for the examples: it asks for a sum, and asks once more where the answer is no number."""  # noqa: INP001

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.agents.given import AgentTask, PolicyAccess

Message = dict[str, Any]

most_calls = 3
_asked_again = "That is no number. Answer with the number alone."


def run(task: AgentTask, policy: PolicyAccess) -> str:
    """One session: up to three calls that extend one another; what is returned is scored.

    Any program that speaks the OpenAI protocol to `policy.base_url` will do, a framework of agents as well.
    """
    messages = list(task.messages)
    answer = ask(policy, messages)
    for _ in range(most_calls - 1):
        if re.search(r"\d", str(answer["content"])):
            break
        messages += [answer, {"role": "user", "content": _asked_again}]
        answer = ask(policy, messages)
    return str(answer["content"])


def ask(policy: PolicyAccess, messages: Sequence[Message]) -> Message:
    """One call, with the standard library alone; the answer as a message."""
    request = urllib.request.Request(  # noqa: S310 - the worker's own address
        f"{policy.base_url}/chat/completions",
        data=json.dumps({"model": policy.model, "messages": list(messages)}).encode(),
        headers={"Authorization": f"Bearer {policy.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        message: Message = json.load(response)["choices"][0]["message"]
    return message
