"""What a worker needs for sessions of agents, made from the configuration; nothing is started.

The policy's side, tokenizer, template and parsers, is made in the endpoint's process: `served_policy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from producers.agents.choice import agent_runner
from producers.rollout.agent_sessions import AgentSettings
from producers.rollout.agents import Agents
from producers.rollout.prompts import load_tokenizer
from producers.sessions.chat_template import TokenizerTemplate
from producers.sessions.listening import Listening
from producers.sessions.live import Policy
from producers.sessions.messages import PlainParser
from producers.sessions.process import EndpointProcess, PolicySource
from producers.sessions.rendering import ConversationRenderer
from producers.sessions.text_tokens import TextTokens
from producers.sessions.vllm_messages import VLLMParser
from rollog.kernel.errors import ConfigError
from rollog.settings.agent import AgentConfig
from rollog.settings.run import ModelConfig

if TYPE_CHECKING:
    from producers.sessions.messages import TurnParser


def agents_of(config: AgentConfig, model: ModelConfig, tokenizer: Any) -> Agents:
    """Agents, and the endpoint that serves them. Raises ConfigError where the model or this machine cannot."""
    require_endpoint()
    require_template(model, tokenizer)
    source = PolicySource(
        function=f"{__name__}:{served_policy.__name__}",
        arguments={"agent": config.model_dump(mode="json"), "model": model.model_dump(mode="json")},
    )
    endpoint = EndpointProcess(
        source,
        parallel_calls=config.parallel_calls,
        listening=Listening(
            host=config.host,
            port=config.port,
            public_host=config.public_host,
            certfile=config.ssl_certfile,
            keyfile=config.ssl_keyfile,
        ),
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


def served_policy(agent: dict[str, Any], model: dict[str, Any]) -> Policy:
    """The policy of sections `agent` and `model`. Raises ConfigError, DataError where there is none."""
    config, sized = AgentConfig(**agent), ModelConfig(**model)
    loaded = load_tokenizer(str(sized.tokenizer or sized.path))
    tokens = TextTokens(loaded)
    return Policy(
        renderer=conversation_renderer(config, sized, loaded),
        parser=_parser(config, loaded, tokens),
        tokens=tokens,
        vocabulary_size=len(loaded),
        context_tokens=sized.max_context_tokens,
    )


def require_endpoint() -> None:
    """Raises ConfigError where what the endpoint needs is not installed."""
    try:
        import aiohttp  # noqa: F401, PLC0415  # an extra
    except ImportError as error:
        raise ConfigError(
            "agents ask the policy over HTTP, and aiohttp is not installed: pip install rollog[agents]"
        ) from error


def require_template(model: ModelConfig, tokenizer: Any) -> None:
    """Raises ConfigError where the model has no chat template."""
    if not getattr(tokenizer, "chat_template", None):
        named = model.tokenizer or model.path
        raise ConfigError(
            f"the tokenizer of {named!r} has no chat template, and agents speak in chat messages: take a model that "
            "has one, or put a chat_template.jinja beside its tokenizer"
        )


def conversation_renderer(config: AgentConfig, model: ModelConfig, tokenizer: Any) -> ConversationRenderer:
    """The model's chat template for sessions. Raises ConfigError where it has none."""
    require_template(model, tokenizer)
    template = TokenizerTemplate(tokenizer, defaults=model.chat_template_kwargs)
    return ConversationRenderer(template, TextTokens(tokenizer), history=config.history)


def _parser(config: AgentConfig, tokenizer: Any, tokens: TextTokens) -> TurnParser:
    if config.tool_parser is None and config.reasoning_parser is None:
        return PlainParser(tokens)
    return VLLMParser(
        tokenizer, tokens, tool_parser=config.tool_parser, reasoning_parser=config.reasoning_parser
    )
