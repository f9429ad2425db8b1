"""Settings of agents: one of two ways to name one, and what contradicts it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rollog.settings.settings import Settings

data = {"data": {"train": "prompts.jsonl"}, "reward": {"function": "math"}}


def settings(**agent: Any) -> Settings:
    return Settings.model_validate(data | {"agent": agent})


def test_an_agent_is_a_function_or_a_command() -> None:
    assert settings(function="my_agent:run").agent.name == "my_agent:run"
    assert settings(command=["agent", "{prompt}"]).agent.name == "agent {prompt}"
    assert not Settings().agent.is_given
    with pytest.raises(ValidationError, match="both say what the agent is"):
        settings(function="my_agent:run", command=["agent"])
    with pytest.raises(ValidationError, match="give it as module:function"):
        settings(function="my_agent")


def test_the_tokens_of_a_session_are_its_budget() -> None:
    assert settings(function="my_agent:run", max_tokens=77).response_budget == 77


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agent": {"max_turns": 3}}, "agent.max_turns is set and there is no agent"),
        ({"agent": {"function": "a:b"}, "data": {}}, "needs prompts: set data.train"),
        ({"agent": {"function": "a:b", "reward": "agent"}}, "both say what the reward is"),
        (
            {"agent": {"function": "a:b"}, "environment": {"name": "nim"}, "data": {}, "reward": {}},
            "both say what a rollout is",
        ),
        (
            {"agent": {"command": ["a"], "reward": "agent"}, "reward": {}},
            "what a command prints is no reward",
        ),
        ({"agent": {"function": "a:b", "sandbox": "none"}}, "a function has no sandbox"),
        (
            {"agent": {"command": ["a"], "python": "/usr/bin/python3"}},
            "name the interpreter in agent.command",
        ),
    ],
)
def test_what_contradicts_an_agent_is_refused_with_its_remedy(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Settings.model_validate(data | changes)


def test_the_agents_own_reward_needs_no_reward_function() -> None:
    own = Settings.model_validate(
        {"data": data["data"], "agent": {"function": "a:b", "reward": "agent"}},
    )
    assert own.reward.identity is None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"host": "10.0.0.1"}, "not loopback"),
        ({"host": "worker.example"}, "not loopback"),
        ({"ssl_certfile": "a.pem"}, "belong together"),
        ({"ssl_keyfile": "a.pem"}, "belong together"),
        ({"host": "0.0.0.0", "ssl_certfile": "a.pem", "ssl_keyfile": "b.pem"}, "agent.public_host"),
    ],
)
def test_an_endpoint_whose_keys_others_would_read_is_refused(keys: dict[str, str], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        settings(function="my_agent:run", **keys)


def test_an_endpoint_with_a_certificate_may_be_reached_from_elsewhere() -> None:
    tls = {"ssl_certfile": "a.pem", "ssl_keyfile": "b.pem", "public_host": "worker.example"}
    assert settings(function="my_agent:run", host="0.0.0.0", port=8443, **tls).agent.port == 8443
