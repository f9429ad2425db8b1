"""vLLM's own parsers of reasoning and tool calls, for models that it knows. It is heavy to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from producers.sessions.conversations import for_template
from producers.sessions.messages import ParsedTurn, ToolCall
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.sessions.rendering import Conversation
    from producers.sessions.text_tokens import TextTokens


class VLLMParser:
    """Parsers by the names under which vLLM lists them. Raises ConfigError where it knows no such name."""

    def __init__(
        self,
        tokenizer: Any,
        tokens: TextTokens,
        *,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        from vllm.parser.parser_manager import ParserManager  # noqa: PLC0415  # heavy

        self._tokenizer = tokenizer
        self._tokens = tokens
        try:
            self._parser: Any = ParserManager.get_parser(
                tool_parser_name=tool_parser,
                reasoning_parser_name=reasoning_parser,
                enable_auto_tools=tool_parser is not None,
                tokenizer=tokenizer,
            )
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(
                f"tool parser {tool_parser!r} and reasoning parser {reasoning_parser!r} do not serve this "
                f"model: {error}; name parsers that `vllm serve --help` lists"
            ) from error

    def parse(
        self, conversation: Conversation, input_ids: Sequence[int], turn_ids: Sequence[int]
    ) -> ParsedTurn:
        """What the turn says; plain text where the parser fails on it."""
        text = self._tokens.text(turn_ids)
        if self._parser is None:
            return ParsedTurn(content=text)
        try:
            return self._parsed(conversation, input_ids, turn_ids)
        except Exception:  # noqa: BLE001  # parsers raise whatever model output makes them; the record has the ids
            return ParsedTurn(content=text)

    def _parsed(
        self, conversation: Conversation, input_ids: Sequence[int], turn_ids: Sequence[int]
    ) -> ParsedTurn:
        from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: PLC0415  # heavy
            ChatCompletionRequest,
        )

        request = ChatCompletionRequest(
            model="policy",
            messages=[for_template(message) for message in conversation.messages],
            **({"tools": list(conversation.tools), "tool_choice": "auto"} if conversation.tools else {}),
        )
        parser = self._parser(
            self._tokenizer, request.tools, chat_template_kwargs=dict(conversation.arguments)
        )
        request = parser.adjust_request(request)
        parser.set_prompt_token_ids(list(input_ids))
        is_closed = turn_ids[-1] in self._tokens.special_ids
        said = list(turn_ids[:-1] if is_closed else turn_ids)
        text = self._tokens.text(said, with_special=not request.skip_special_tokens)
        reasoning, content, calls = parser.parse(
            text, request, enable_auto_tools=bool(conversation.tools), model_output_token_ids=said
        )
        return ParsedTurn(
            content=content or "",
            reasoning=reasoning or "",
            tool_calls=tuple(ToolCall(call.name, call.arguments) for call in calls or []),
        )
