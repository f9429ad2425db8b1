"""`judge`: a number that a language model gives, asked over an OpenAI-compatible chat endpoint.

Each call is a connection of its own, which ends with the call. How many there are at once is bounded where calls are
handed out (`reward.max_in_flight`), and how long one takes with all its attempts by `reward.timeout_seconds`. Redirects
are refused: they would take the key elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from typing import TYPE_CHECKING, Any

from rollog.kernel.errors import DataError, RewardError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.rewards.functions import RewardFunction
    from rollog.settings.named_rewards import JudgeReward

_most_answer_bytes = 1 << 20
_first_pause_seconds = 0.5
_longest_pause_seconds = 8.0
_too_many_requests, _first_server_error = 429, 500
_placeholder = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")


class Repeatable(Exception):
    """An attempt failed in a way that may pass. `pause_seconds` is what the endpoint asks to be left alone for."""

    def __init__(self, reason: str, pause_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.pause_seconds = pause_seconds


def judge_reward(options: JudgeReward) -> RewardFunction:
    """The reward function. Raises DataError without aiohttp, and where the variable of the key is not set."""
    try:
        import aiohttp  # noqa: F401, PLC0415 - an extra; imported before the first call is timed
    except ImportError as error:
        raise DataError("the reward 'judge' needs aiohttp; install rollog[agents]") from error
    headers = _headers(options.variable)
    pattern = re.compile(options.pattern)

    async def judge(prompt: object, response: str, /, **fields: Any) -> float:
        question = filled(options.template, prompt, response, fields)
        answer = await _asked(options, headers, question)
        return _within(options.bounds, last_match(pattern, answer))

    return judge


def filled(template: str, prompt: object, response: str, fields: Mapping[str, Any]) -> str:
    """The template with {prompt}, {response} and {field} replaced, in one pass: what is put in is not looked at again.

    Raises RewardError for a name that the row lacks.
    """
    values: dict[str, Any] = {**fields, "prompt": _as_text(prompt), "response": response}

    def value(found: re.Match[str]) -> str:
        if found[1] is not None:
            return f"{{{found[1]}}}"
        if found[2] not in values:
            raise RewardError(
                f"the template asks for {found[0]}, which the row lacks (its fields: {', '.join(sorted(fields))}); "
                f"correct it, or write {{{found[0]}}} for the text itself"
            )
        return str(values[found[2]])

    return _placeholder.sub(value, template)


def last_match(pattern: re.Pattern[str], answer: str) -> float:
    """The number at the pattern's last match: its first group, where it has one. Raises RewardError."""
    matches = list(pattern.finditer(answer))
    try:
        return float((matches[-1][1] if pattern.groups else matches[-1][0]) or "")
    except (IndexError, ValueError) as error:
        raise RewardError(
            f"the judge gave no number where pattern = {pattern.pattern!r} looks for one: {answer[-200:]!r}; say in "
            "the template how it must answer"
        ) from error


def pause_before(attempt: int, asked_seconds: float | None) -> float:
    """Seconds before an attempt (1 is the first repeated one): they double, differ at random, and heed the endpoint."""
    doubled = min(_longest_pause_seconds, _first_pause_seconds * 2.0 ** (attempt - 1))
    drawn = doubled * random.uniform(0.5, 1.0)  # noqa: S311 - so that many do not come back at once
    return max(drawn, min(asked_seconds or 0.0, _longest_pause_seconds))


async def _asked(options: JudgeReward, headers: Mapping[str, str], question: str) -> str:
    for attempt in range(1, options.attempts + 1):
        try:
            return await _attempted(options, headers, question)
        except Repeatable as error:
            if attempt == options.attempts:
                raise RewardError(
                    f"the judge did not answer in {attempt} attempts, at last: {error}"
                ) from error
            await asyncio.sleep(pause_before(attempt, error.pause_seconds))
    raise AssertionError("not reached")


async def _attempted(options: JudgeReward, headers: Mapping[str, str], question: str) -> str:
    import aiohttp  # noqa: PLC0415 - an extra

    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    body = {
        "model": options.model,
        "messages": [*system, {"role": "user", "content": question}],
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
    }
    address = options.address.rstrip("/") + "/chat/completions"
    limit = aiohttp.ClientTimeout(total=options.request_seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(address, json=body, headers=headers, allow_redirects=False) as answer,
        ):
            content = await _read(answer)
            status, after = answer.status, answer.headers.get("Retry-After")
    except TimeoutError as error:
        raise Repeatable(
            f"nothing came from {options.address} within {options.request_seconds:g} s"
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise Repeatable(f"{options.address} cannot be reached: {type(error).__name__}: {error}") from error
    if status == _too_many_requests or status >= _first_server_error:
        raise Repeatable(f"{options.address} answered {status}: {_start(content)}", _seconds(after))
    if status != 200:  # noqa: PLR2004 - OK
        raise RewardError(f"the judge at {options.address} answered {status}: {_start(content)}")
    return _said(content)


async def _read(answer: Any) -> bytes:
    """The body, as far as it is looked at."""
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > _most_answer_bytes:
            raise RewardError(f"the judge answered with more than {_most_answer_bytes} bytes")
    return bytes(content)


def _said(content: bytes) -> str:
    """The text of a chat completion."""
    try:
        said = json.loads(content)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise RewardError(f"the judge's answer is no chat completion: {_start(content)}") from error
    if not isinstance(said, str):
        raise RewardError(
            "the judge's answer has no text; raise max_tokens where it thinks before it answers"
        )
    return said


def _headers(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise DataError(
            f"the reward 'judge' takes its key from the environment variable {variable}, which is not set; set it "
            "where the worker starts"
        )
    return {"Authorization": f"Bearer {key}"}


def _as_text(prompt: object) -> str:
    """A prompt as text: chat messages one below the other."""
    if not isinstance(prompt, list):
        return str(prompt)
    return "\n\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt)


def _within(bounds: tuple[float, float] | None, number: float) -> float:
    lowest, highest = bounds or (number, number)
    return min(max(number, lowest), highest)


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", header) else None


def _start(content: bytes) -> str:
    return repr(content[:200].decode(errors="replace"))
