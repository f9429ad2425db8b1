"""Requests of the OpenAI protocol in one form: what is asked, what the run decides instead, what is not served.

overridden    temperature and the like: the run's are used
constrained   the answer would not be drawn from the run's distribution: it is answered, and not trained
refused       what one turn of text cannot be
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from producers.sessions.conversations import canonical_json, canonical_messages
from producers.sessions.errors import BadRequest
from producers.sessions.rendering import Conversation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Body = dict[str, Any]

_overridden = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "seed",
)
_constraints = (
    "logit_bias",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "allowed_token_ids",
    "bad_words",
)
_refused = ("audio", "echo", "use_beam_search", "suffix", "prompt_embeds", "functions", "lora", "logprobs")
_not_of_the_question = ("stream", "stream_options", "user", "metadata", "store", "model")
_most_depth = 64
_most_brackets = 1 << 18
"""Making millions of lists would hold up the other sessions: the JSON reader keeps the interpreter."""
_most_stops = 16
_most_stop_characters = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call that is asked for: a conversation, or a `prompt` (text or token ids) to complete."""

    digest: str
    conversation: Conversation | None = None
    prompt: str | tuple[int, ...] = ""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    is_stream: bool = False
    has_usage: bool = False
    is_overridden: bool = False
    is_constrained: bool = False
    num_characters: int = 0
    """Of all texts that become tokens; 0 where they are ids."""


def body_of(data: bytes) -> Body:
    """The JSON object in a request's bytes. Raises BadRequest where it is none, too deep or of too many parts."""
    if data.count(b"[") + data.count(b"{") > _most_brackets:
        raise BadRequest(f"the request has more than {_most_brackets} opening brackets; shorten it")
    try:
        body = json.loads(data, parse_constant=_no_number)
        canonical_json(body).encode()
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request is no JSON in UTF-8: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the request is no JSON object")
    if _is_deeper(body, _most_depth):
        raise BadRequest(f"the request is nested more than {_most_depth} levels deep")
    return body


def chat_request(body: Body) -> Request:
    """A request for chat/completions. Raises BadRequest."""
    choice = body.get("tool_choice")
    tools = body.get("tools") or []
    arguments = body.get("chat_template_kwargs") or {}
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRequest("tools is no list of objects")
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise BadRequest("chat_template_kwargs is no object")
    conversation = Conversation(
        messages=canonical_messages(body.get("messages")),
        tools=() if choice == "none" else tools,
        arguments=arguments,
        goes_on=bool(body.get("continue_final_message")),
    )
    is_forced = choice not in (None, "auto", "none")
    num_characters = _num_characters([conversation.messages, list(conversation.tools), arguments])
    return _request(
        body, "chat", conversation=conversation, is_forced=is_forced, num_characters=num_characters
    )


def text_request(body: Body, vocabulary_size: int) -> Request:
    """A request for completions. Raises BadRequest."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        if not all(0 <= token < vocabulary_size for token in prompt):
            raise BadRequest(f"prompt has token ids that are not in 0 to {vocabulary_size - 1}")
        prompt = tuple(prompt)
    if not prompt or not isinstance(prompt, str | tuple):
        raise BadRequest("prompt is neither one text nor one list of token ids")
    return _request(body, "text", prompt=prompt, num_characters=len(prompt) if isinstance(prompt, str) else 0)


def _request(
    body: Body,
    kind: str,
    *,
    conversation: Conversation | None = None,
    prompt: str | tuple[int, ...] = "",
    is_forced: bool = False,
    num_characters: int = 0,
) -> Request:
    _check_served(body)
    asked = {
        key: value for key, value in body.items() if key not in _not_of_the_question and value is not None
    }
    options = body.get("stream_options") or {}
    form = body.get("response_format") or {"type": "text"}
    return Request(
        digest=hashlib.sha256(canonical_json([kind, asked]).encode()).hexdigest(),
        conversation=conversation,
        prompt=prompt,
        max_tokens=_max_tokens(body),
        stop=_stop(body.get("stop")),
        is_stream=bool(body.get("stream")),
        has_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        is_overridden=any(body.get(name) is not None for name in _overridden),
        is_constrained=is_forced
        or any(body.get(name) for name in _constraints)
        or not (isinstance(form, dict) and form.get("type") == "text"),
        num_characters=num_characters,
    )


def _check_served(body: Mapping[str, Any]) -> None:
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            raise BadRequest(f"{name} is {body[name]!r}; a call has one answer, so ask several times")
    for name in _refused:
        if body.get(name):
            raise BadRequest(f"{name} is not served; leave it out")
    if body.get("modalities") not in (None, ["text"]):
        raise BadRequest("modalities other than text are not served")


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    asked = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if any(type(number) is not int or number < 1 for number in asked):
        raise BadRequest(f"max_tokens is {asked[0]!r}; at least 1 is needed")
    return min(asked, default=None)


def _stop(stop: object) -> tuple[str, ...]:
    texts: Sequence[object] = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    if stop is not None and not isinstance(stop, str | list):
        raise BadRequest("stop is neither a text nor a list of texts")
    if len(texts) > _most_stops:
        raise BadRequest(f"stop has {len(texts)} texts; at most {_most_stops} are served")
    kept = tuple(text for text in texts if isinstance(text, str) and text)
    if len(kept) < len(texts):
        raise BadRequest("stop holds what is no text, or an empty one")
    if any(len(text) > _most_stop_characters for text in kept):
        raise BadRequest(f"stop has a text of more than {_most_stop_characters} characters; shorten it")
    return kept


def _num_characters(value: object) -> int:
    """Of all texts in a JSON value, names too."""
    count, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            count += len(each)
        elif isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list):
            waiting += each
    return count


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _is_deeper(value: object, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(each, dict | list) for each in level)
