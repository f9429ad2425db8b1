"""Prompts as token ids, responses as text: the model's own tokenizer and chat template.

A directory with a `tokenizer.json` is loaded from exactly that file. AutoTokenizer may instead rebuild the
tokenizer class that belongs to the model's architecture: it takes the word-level tokenizer of a Qwen2 model for
Qwen2's byte-level one and splits words into pieces, without any error.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.engines.model_files import model_file
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schemas import Prompt, RolloutTask

RewardPrompt = str | list[dict[str, Any]]
"""A prompt as the reward function gets it: the text, or the chat messages."""


def load_tokenizer(tokenizer: str) -> Any:
    """The tokenizer of a directory or of a cached Hugging Face model. Raises DataError when there is none."""
    has_file = model_file(tokenizer, "tokenizer.json") is not None
    try:
        loaded = _loader(has_file=has_file).from_pretrained(tokenizer)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _no_tokenizer(tokenizer, str(error)) from error
    # Where there is no file of one, transformers makes an empty one up, by the type of the model.
    names = {*loaded.vocab_files_names.values(), "tokenizer.model", "tekken.json"}
    if Path(tokenizer).expanduser().is_dir() and not any(model_file(tokenizer, name) for name in names):
        raise _no_tokenizer(tokenizer, f"there is none of the files {', '.join(sorted(names))}")
    return loaded


def _loader(*, has_file: bool) -> Any:
    if has_file:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  # takes a second

        return PreTrainedTokenizerFast
    # It loads torch, which takes seconds and which nobody who starts a run needs.
    from transformers import AutoTokenizer  # noqa: PLC0415

    return AutoTokenizer


def _no_tokenizer(tokenizer: str, reason: str) -> DataError:
    return DataError(
        f"{tokenizer!r} has no tokenizer that can be loaded: {reason}; put one beside the model or set model.tokenizer"
    )


class ByteTokenizer:
    """Text as the numbers of its bytes: enough for an engine without a model."""

    def encode(self, text: str, **options: bool) -> list[int]:
        """One number per byte."""
        del options
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of these bytes."""
        del skip_special_tokens
        return bytes(token_id % 256 for token_id in token_ids).decode(errors="replace")

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool, **others: Any
    ) -> str:
        """Roles and contents, one per line."""
        del tokenize, add_generation_prompt, others
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


class PromptRenderer:
    """Turns prompts into token ids that leave room for the response, and token ids into text.

    Replicas of a prompt arrive close together, so the newest renderings are kept.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_context_tokens: int,
        chat_template_kwargs: Mapping[str, str | int | float | bool] | None = None,
        cache_size: int = 512,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template_kwargs = dict(chat_template_kwargs or {})
        self._max_context_tokens = max_context_tokens
        self._cache: OrderedDict[str, tuple[Prompt, tuple[int, ...]]] = OrderedDict()
        self._cache_size = cache_size

    def token_ids(self, task: RolloutTask) -> tuple[int, ...]:
        """Token ids of the task's prompt. Raises DataError when it cannot be rendered or is too long."""
        return self.prompt_token_ids(task.prompt, task.sampling.max_tokens)

    def prompt_token_ids(self, prompt: Prompt, max_tokens: int) -> tuple[int, ...]:
        """Token ids of a prompt whose response may take `max_tokens`. Raises DataError as `token_ids` does."""
        token_ids = self._cached(prompt)
        room = self._max_context_tokens - len(token_ids)
        if not token_ids:
            raise DataError(f"prompt {prompt.prompt_id} is empty after tokenization")
        if max_tokens > room:
            raise DataError(
                f"prompt {prompt.prompt_id} has {len(token_ids)} tokens and sampling.max_tokens is "
                f"{max_tokens}: more than model.max_context_tokens = {self._max_context_tokens}; "
                "shorten the prompt, lower the first or raise the second"
            )
        return token_ids

    @property
    def unknown_token_id(self) -> int | None:
        """The token that stands for what the tokenizer has none for; None where it has no such token.

        None as well where the end of a text is the same token: in a prompt it says nothing then.
        """
        unknown: int | None = getattr(self._tokenizer, "unk_token_id", None)
        others = {getattr(self._tokenizer, f"{name}_token_id", None) for name in ("bos", "eos")}
        return None if unknown in others else unknown

    def text(self, token_ids: Sequence[int]) -> str:
        """A response as text, without special tokens."""
        decoded: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return decoded

    def raw_text(self, token_ids: Sequence[int]) -> str:
        """The same with special tokens, as stop texts may name one."""
        decoded: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return decoded

    def _cached(self, prompt: Prompt) -> tuple[int, ...]:
        cached = self._cache.get(prompt.prompt_id)
        if cached is not None and cached[0] == prompt:
            self._cache.move_to_end(prompt.prompt_id)
            return cached[1]
        token_ids = tuple(self._render(prompt))
        self._cache[prompt.prompt_id] = (prompt, token_ids)
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return token_ids

    def _render(self, prompt: Prompt) -> list[int]:
        if prompt.text is not None:
            return list(self._tokenizer.encode(prompt.text))
        from jinja2 import TemplateError  # noqa: PLC0415  # comes with transformers' chat templates

        messages = reward_prompt(prompt)
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._chat_template_kwargs
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"prompt {prompt.prompt_id}: the chat template refuses its messages: {error}; give messages with "
                "role and content, and a tokenizer with a chat template"
            ) from error
        # The template writes the special tokens itself.
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def reward_prompt(prompt: Prompt) -> RewardPrompt:
    """What the reward function sees of the prompt. Raises DataError when its messages are malformed."""
    if prompt.text is not None:
        return prompt.text
    try:
        messages = json.loads(prompt.messages_json or "")
    except ValueError as error:
        raise DataError(f"prompt {prompt.prompt_id}: its messages are not JSON: {error}") from error
    if not (
        isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)
    ):
        raise DataError(
            f"prompt {prompt.prompt_id}: its messages are no list of objects with role and content"
        )
    return messages


def reward_fields(prompt: Prompt) -> dict[str, Any]:
    """The dataset row's other fields. Raises DataError when they are malformed."""
    try:
        fields = json.loads(prompt.reward_inputs_json)
    except ValueError as error:
        raise DataError(f"prompt {prompt.prompt_id}: its reward inputs are not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise DataError(f"prompt {prompt.prompt_id}: its reward inputs are no JSON object")
    return fields
