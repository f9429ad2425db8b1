"""A model's chat template: messages, tools and arguments in, text out."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol

from producers.sessions.conversations import for_template
from producers.sessions.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.sessions.conversations import Message


class ChatTemplate(Protocol):
    """Renders a conversation."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The text of canonical messages. Raises BadRequest where the template refuses them."""
        ...


class TokenizerTemplate:
    """The template that a transformers tokenizer brings; `defaults` are arguments that the run gives it."""

    def __init__(self, tokenizer: Any, *, defaults: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._defaults = dict(defaults or {})
        self._reserved = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The template's text. Raises BadRequest where it refuses the messages, or an argument is not for it."""
        from jinja2 import TemplateError  # noqa: PLC0415  # comes with transformers' chat templates

        if reserved := sorted(self._reserved.intersection(arguments)):
            raise BadRequest(f"chat_template_kwargs names {', '.join(reserved)}, which a request cannot set")
        try:
            text: str = self._tokenizer.apply_chat_template(
                [for_template(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self._defaults | dict(arguments),
            )
        except (TemplateError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadRequest(f"the chat template refuses the messages: {error}") from error
        return text
