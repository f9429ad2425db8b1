"""Agents, endpoint and engine of a test's worker, and the check of the samples that come of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from producers.agents.process import FunctionAgents
from producers.engines.simulated import SimulatedEngine, simulated_logprob
from producers.rollout.agent_sessions import AgentSettings
from producers.rollout.agents import Agents
from producers.sessions.text_tokens import TextTokens
from schemas import SamplingParameters
from support.chat_models import a_chat_tokenizer
from support.served_session import local_endpoint
from support.worker_thread import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.agents.ports import AgentRunner
    from producers.engines.ports import GenerationRequest
    from producers.rewards.ports import Rewards
    from producers.sessions.process import SessionEndpoint
    from schemas import RolloutTask, Sample
    from support.worker_thread import Stage

context_tokens = 4000


@dataclass
class Asked:
    """Every input of the engine, and what it said to it."""

    inputs: list[tuple[int, ...]] = field(default_factory=list)
    said: list[tuple[int, ...]] = field(default_factory=list)


def an_engine(
    texts: Sequence[str] = ("yes<|im_end|>",),
    asked: Asked | None = None,
    tokens_per_second: float = 5000,
    engine_class: type[SimulatedEngine] = SimulatedEngine,
) -> SimulatedEngine:
    """Says the texts in turn, then the last one for ever."""
    tokens, memory = TextTokens(a_chat_tokenizer()), asked or Asked()

    def say(request: GenerationRequest) -> list[int]:
        ids = tokens.added_ids(texts[min(len(memory.inputs), len(texts) - 1)])
        memory.inputs.append(tuple(request.prompt_token_ids))
        memory.said.append(tuple(ids))
        return ids

    return engine_class(tokens_per_second=tokens_per_second, max_context_tokens=context_tokens, tokens_of=say)


def agents(function: str = "two_calls", endpoint: SessionEndpoint | None = None, **changes: Any) -> Agents:
    """Agents of `support.agents_for_tests`; the endpoint is the fake one unless another is given."""
    runner = FunctionAgents(f"support.agents_for_tests:{function}")
    return agents_of(runner, endpoint or local_endpoint(), **changes)


def agents_of(runner: AgentRunner, endpoint: SessionEndpoint, **changes: Any) -> Agents:
    """Agents of a runner, which ask there."""
    settings = AgentSettings(max_turns=20, max_tokens=5000, timeout_seconds=60.0)
    return Agents(runner=runner, endpoint=endpoint, settings=replace(settings, **changes))


def a_session(
    stage: Stage, group: int = 0, text: str = "hi", max_tokens: int = 500, **fields: Any
) -> RolloutTask:
    task = stage.task(group, sampling=SamplingParameters(temperature=1.0, max_tokens=max_tokens))
    prompt = replace(task.prompt, text=text, messages_json=None, reward_inputs_json=json.dumps(fields))
    return replace(task, reward="", prompt=prompt)


def served(
    stage: Stage,
    served_agents: Agents,
    *tasks: RolloutTask,
    engine: SimulatedEngine | None = None,
    rewards: Rewards | None = None,
) -> list[Sample]:
    """The samples of some tasks."""
    with running(
        stage,
        agents=served_agents,
        engine=engine or an_engine(),
        rewards=rewards,
        tokenizer=a_chat_tokenizer(),
    ):
        stage.give_grant()
        for task in tasks:
            stage.order(task)
        return stage.samples(len(tasks))


def check_sample(sample: Sample, asked: Asked) -> None:
    """Every turn of a sample stands behind exactly the ids that the engine got, and says what it said."""
    pairs = list(zip(asked.inputs, asked.said, strict=True))
    rows = sample.rows()
    for turn in sample.turns:
        row = rows[turn.sequence]
        first = len(row.prompt_token_ids)
        ids = np.concatenate((row.prompt_token_ids, row.token_ids)).tolist()
        said = tuple(ids[first + turn.start : first + turn.end])
        assert any(
            tuple(ids[: first + turn.start]) == given and said == made[: len(said)] for given, made in pairs
        )
        expected = [simulated_logprob(token, row.segments[0].version) for token in said]
        if len(row.segments) == 1:
            assert (
                row.behaviour_logprobs[turn.start : turn.end].tolist()
                == np.array(expected, dtype=np.float32).tolist()
            )
