"""An agent that plays the long game by asking the policy over HTTP; its client asks again where a connection breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.chaos.long_game import LongGame, num_turns

if TYPE_CHECKING:
    from producers.agents.given import AgentTask, PolicyAccess

_client_retries = 10


def play(task: AgentTask, policy: PolicyAccess) -> dict[str, Any]:
    """One game, whose ranges the prompt's own seed draws; every question has all that was said before."""
    game, rewards = LongGame(), []
    messages: list[Any] = [{"role": "user", "content": game.reset(int(task.fields["seed"])).text}]
    with policy.openai(max_retries=_client_retries, timeout=60.0) as client:
        for _ in range(num_turns):
            answer = client.chat.completions.create(model=policy.model, messages=messages)
            said = answer.choices[0].message.content or ""
            result = game.step(said)
            rewards.append(result.reward)
            messages += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": result.observation.text},
            ]
    return {"reward": sum(rewards)}
