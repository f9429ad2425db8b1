"""What a worker needs for sessions of agents, made from the configuration; nothing is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from producers.agents.choice import agent_runner
from producers.rollout.agent_sessions import AgentSettings
from producers.rollout.agents import Agents
from producers.sessions.chat_template import TokenizerTemplate
from producers.sessions.live import Policy
from producers.sessions.messages import PlainParser
from producers.sessions.rendering import ConversationRenderer
from producers.sessions.text_tokens import TextTokens
from producers.sessions.vllm_messages import VLLMParser
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from producers.sessions.endpoint_thread import WorkerCalls
    from producers.sessions.messages import TurnParser
    from rollog.settings.agent import AgentConfig
    from rollog.settings.run import ModelConfig


def agents_of(config: AgentConfig, model: ModelConfig, tokenizer: Any) -> Agents:
    """Agents, and the endpoint that serves them. Raises ConfigError where the model or this machine cannot."""
    require_endpoint()
    from producers.sessions.endpoint_thread import EndpointThread  # noqa: PLC0415  # needs the extra `agents`

    renderer = conversation_renderer(config, model, tokenizer)
    tokens = TextTokens(tokenizer)
    parser = _parser(config, tokenizer, tokens)

    def policy_of(calls: WorkerCalls) -> Policy:
        return Policy(
            calls=calls,
            renderer=renderer,
            parser=parser,
            tokens=tokens,
            parallel_calls=config.parallel_calls,
        )

    endpoint = EndpointThread(
        policy_of,
        vocabulary_size=len(tokenizer),
        has_socket=bool(config.command) and config.sandbox == "required",
    )
    return Agents(
        runner=agent_runner(config, endpoint.socket_path),
        endpoint=endpoint,
        settings=AgentSettings(
            max_turns=config.max_turns,
            max_tokens=config.max_tokens,
            max_forks=config.max_forks,
            timeout_seconds=config.timeout_seconds,
            idle_seconds=config.idle_seconds,
            grace_seconds=config.grace_seconds,
            has_own_reward=config.reward == "agent",
            may_resume=config.restore == "replay",
        ),
    )


def require_endpoint() -> None:
    """Raises ConfigError where what the endpoint needs is not installed."""
    try:
        import aiohttp  # noqa: F401, PLC0415  # an extra
    except ImportError as error:
        raise ConfigError(
            "agents ask the policy over HTTP, and aiohttp is not installed: pip install rollog[agents]"
        ) from error


def conversation_renderer(config: AgentConfig, model: ModelConfig, tokenizer: Any) -> ConversationRenderer:
    """The model's chat template for sessions. Raises ConfigError where it has none."""
    if not getattr(tokenizer, "chat_template", None):
        named = model.tokenizer or model.path
        raise ConfigError(
            f"the tokenizer of {named!r} has no chat template, and agents speak in chat messages: take a model that "
            "has one, or put a chat_template.jinja beside its tokenizer"
        )
    template = TokenizerTemplate(tokenizer, defaults=model.chat_template_kwargs)
    return ConversationRenderer(template, TextTokens(tokenizer), history=config.history)


def _parser(config: AgentConfig, tokenizer: Any, tokens: TextTokens) -> TurnParser:
    if config.tool_parser is None and config.reasoning_parser is None:
        return PlainParser(tokens)
    return VLLMParser(
        tokenizer, tokens, tool_parser=config.tool_parser, reasoning_parser=config.reasoning_parser
    )
