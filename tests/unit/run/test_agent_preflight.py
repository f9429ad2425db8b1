"""What refuses a run with an agent before it exists, and the parts that a worker makes of its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.chat_models import a_chat_tokenizer
from support.worker_thread import broker_config

from producers.agents.commands import PlainCommands, SandboxedCommands
from producers.agents.process import FunctionAgents
from producers.rewards.episodes import EpisodeRewards
from producers.rollout.role import make_parts
from producers.rollout.settings import RolloutSettings
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.errors import ConfigError, DataError
from rollog.kernel.metrics import Metrics
from rollog.run.preflight.agents import agent
from rollog.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from producers.rollout.worker import WorkerParts


@pytest.fixture
def model(tmp_path: Path) -> Path:
    a_chat_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    return tmp_path / "model"


def settings(model: Path, **agent: Any) -> Settings:
    return Settings.model_validate(
        {
            "model": {"path": str(model), "max_context_tokens": 2048},
            "data": {"train": "prompts.jsonl"},
            "reward": {} if agent.get("reward") == "agent" else {"function": "exact"},
            "agent": agent,
            "rollout": {"engine": "simulated"},
        }
    )


def parts(settings: Settings, home: Path) -> WorkerParts:
    own = RolloutSettings(
        run="first",
        prefix="rollog",
        seed=0,
        name="worker",
        home=home,
        broker=broker_config,
        model=settings.model,
        sampling=settings.sampling,
        reward=settings.reward,
        environment=settings.environment,
        rollout=settings.rollout,
        weights_uri=str(home / "weights"),
        num_replicas=8,
        agent=settings.agent,
    )
    return make_parts(own, MemoryBroker(), Metrics(), "worker-1")


def test_a_function_that_can_be_imported_and_a_template_that_appends_pass(model: Path) -> None:
    found = agent(settings(model, function="support.agents_for_tests:two_calls"))
    assert [(each.what, each.remedy) for each in found] == [("agent", None)] * 2
    assert found[0].found == "the chat template appends user, tool, tools, system"


def test_a_run_without_an_agent_is_asked_nothing(tmp_path: Path) -> None:
    assert agent(Settings.model_validate({"model": {"path": str(tmp_path)}})) == []


def test_a_function_that_is_missing_is_named(model: Path) -> None:
    with pytest.raises(DataError, match="has no attribute 'missing'; give module:function"):
        agent(settings(model, function="support.agents_for_tests:missing"))


def test_an_interpreter_that_is_missing_is_named(model: Path) -> None:
    with pytest.raises(DataError, match=r"agent\.python = '/no/such/python' has to be"):
        agent(settings(model, function="support.agents_for_tests:two_calls", python="/no/such/python"))


def test_a_tokenizer_without_a_chat_template_is_refused(model: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="has no chat template, and agents speak in chat messages"):
        agent(settings(model, function="support.agents_for_tests:two_calls"))


def test_a_template_that_refuses_a_message_is_refused(model: Path) -> None:
    refusing = "{{ raise_exception('no roles here') }}"
    (model / "chat_template.jinja").write_text(refusing, encoding="utf-8")
    with pytest.raises(ConfigError, match="refuses a conversation of one message"):
        agent(settings(model, function="support.agents_for_tests:two_calls"))


def test_a_template_that_does_not_append_is_said_to_fork(model: Path) -> None:
    counting = "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}"
    (model / "chat_template.jinja").write_text(counting, encoding="utf-8")
    found = agent(settings(model, function="support.agents_for_tests:two_calls"))[0]
    assert "each call that brings one forks" in (found.remedy or "")
    assert not found.is_needed


def test_a_program_that_is_not_there_is_refused_where_no_sandbox_is_asked_for(model: Path) -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-agent' here"):
        agent(settings(model, command=["no-such-agent"], sandbox="none"))


def test_a_worker_makes_what_the_settings_name(model: Path, tmp_path: Path) -> None:
    made = parts(settings(model, function="a:b", max_turns=3, reward="agent"), tmp_path)
    assert made.agents is not None
    assert isinstance(made.agents.runner, FunctionAgents)
    assert isinstance(made.training_rewards, EpisodeRewards)
    assert (made.agents.settings.max_turns, made.agents.settings.has_own_reward) == (3, True)
    assert made.agents.endpoint.socket_path is None


def test_a_command_is_run_in_a_sandbox_unless_the_settings_name_none(model: Path, tmp_path: Path) -> None:
    contained, plain = (
        parts(settings(model, command=["x"], sandbox=sandbox), tmp_path).agents
        for sandbox in ("required", "none")
    )
    assert contained is not None
    assert plain is not None
    assert isinstance(contained.runner, SandboxedCommands)
    assert contained.endpoint.socket_path is not None
    assert isinstance(plain.runner, PlainCommands)
