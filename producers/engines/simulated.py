"""An engine without a model, for tests and for benchmarks in simulated time.

Length and tokens of a response are a hash of (engine seed, request seed, prompt); logprobs also depend on the
version, so that a mislabelled token shows. Time passes on an injected clock, at a fixed rate per request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from producers.engines.weights_file import ModelTensors, check_weights_file
from rollog.kernel.errors import EngineError, WeightsError
from schemas import FinishReason, Float32Array, Int32Array, float32_array, int32_array

if TYPE_CHECKING:
    from pathlib import Path

FailureOf = Callable[[GenerationRequest], str | None]
LengthOf = Callable[[GenerationRequest], int]
TokensOf = Callable[[GenerationRequest], Sequence[int]]


class Clock(Protocol):
    """Where the engine's time comes from."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many of this clock's seconds."""
        ...


class WallClock:
    """Real time."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Real sleep."""
        await asyncio.sleep(seconds)


@dataclass
class _Response:
    """One response in the making; `since` is when its tokens began to flow, None while they do not."""

    token_ids: Int32Array
    finish_reason: FinishReason
    spans: list[VersionSpan] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    since: float | None = None
    aborted: bool = False

    @property
    def num_generated(self) -> int:
        return self.spans[-1].end if self.spans else 0

    @property
    def num_missing(self) -> int:
        return len(self.token_ids) - self.num_generated

    def advance(self, num_tokens: int, version: int) -> None:
        """Note `num_tokens` more tokens under `version`, as far as there are more, and stop the flow."""
        self.since = None
        start, end = self.num_generated, self.num_generated + min(num_tokens, self.num_missing)
        if end == start:
            return
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version=version, start=start, end=end))


class SimulatedEngine:
    """Deterministic responses at `tokens_per_second` per request.

    `failure_of` names the error that a request shall raise, or None; `length_of` the number of tokens of its response,
    and `tokens_of` these themselves, in place of a hash. With `tensors` a weights file must fit them; without, any file
    will do.
    """

    name = "simulated"
    engine_version = "1"

    def __init__(
        self,
        *,
        seed: int = 0,
        tokens_per_second: float = 1000.0,
        max_context_tokens: int = 2048,
        vocabulary_size: int = 64,
        end_token_id: int = 1,
        load_seconds: float = 0.0,
        tensors: ModelTensors | None = None,
        clock: Clock | None = None,
        failure_of: FailureOf | None = None,
        length_of: LengthOf | None = None,
        tokens_of: TokensOf | None = None,
    ) -> None:
        self.max_context_tokens = max_context_tokens
        self._seed = seed
        self._tokens_per_second = tokens_per_second
        self._vocabulary_size = vocabulary_size
        self._end_token_id = end_token_id
        self._load_seconds = load_seconds
        self._clock = clock or WallClock()
        self._failure_of = failure_of or _never
        self._length_of = length_of
        self._tokens_of = tokens_of
        self._tensors = tensors
        self._version: int | None = None
        self._paused = False
        self._responses: dict[str, _Response] = {}

    async def start(self) -> None:
        """Nothing to start."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Return after the response's time. Raises EngineError on demand, or without weights."""
        if self._version is None:
            raise EngineError("no weights are loaded; wait for the first version")
        if failure := self._failure_of(request):
            raise EngineError(failure)
        response = self._responses[request.request_id] = self._plan(request)
        try:
            while response.num_missing and not response.aborted:
                response.wake.clear()
                if self._paused:
                    await response.wake.wait()
                else:
                    await self._flow(response)
        finally:
            del self._responses[request.request_id]
        return self._result(response)

    async def prompt_logprobs(self, token_ids: Sequence[int], request_id: str) -> None:
        """There is no model that would give any."""

    async def abort(self, request_id: str) -> None:
        """Make the matching `generate` return what it has."""
        response = self._responses.get(request_id)
        if response is not None:
            self._settle(response)
            response.aborted = True
            response.wake.set()

    async def pause(self) -> None:
        """Stop making tokens."""
        self._paused = True
        for response in self._responses.values():
            self._settle(response)
            response.wake.set()

    async def load_weights(self, path: Path, version: int) -> None:
        """Take the file as `version`. Raises WeightsError when it does not fit."""
        try:
            check_weights_file(path, self._tensors)
        except WeightsError:
            self._version = None
            raise
        await self._clock.sleep(self._load_seconds)
        self._version = version

    async def resume(self) -> None:
        """Go on making tokens."""
        self._paused = False
        for response in self._responses.values():
            response.wake.set()

    async def close(self) -> None:
        """Nothing to end."""

    def _plan(self, request: GenerationRequest) -> _Response:
        room = self.max_context_tokens - len(request.prompt_token_ids)
        if room < 1:
            raise EngineError(
                f"request {request.request_id} has {len(request.prompt_token_ids)} prompt tokens; the engine "
                f"takes {self.max_context_tokens} with the response"
            )
        longest = min(request.sampling.max_tokens, room)
        if self._tokens_of is not None:
            return _said(self._tokens_of(request), longest)
        random = np.random.default_rng([self._seed, request.seed, *request.prompt_token_ids])
        num_tokens = int(random.integers(1, longest + 1))
        if self._length_of is not None:
            num_tokens = min(self._length_of(request), longest)
        token_ids = random.integers(self._end_token_id + 1, self._vocabulary_size, size=num_tokens)
        finish_reason = FinishReason.LENGTH
        if num_tokens < longest:
            token_ids[-1] = self._end_token_id
            finish_reason = FinishReason.STOP
        stop = request.stop.num_tokens(token_ids.tolist()) if request.stop is not None else None
        if stop is not None:
            token_ids, finish_reason = token_ids[:stop], FinishReason.STOP
        return _Response(int32_array(token_ids), finish_reason)

    async def _flow(self, response: _Response) -> None:
        """Let tokens flow to the end of the response, or until `pause` or `abort` settles it."""
        response.since = self._clock.now()
        seconds = response.num_missing / self._tokens_per_second
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        waking = asyncio.ensure_future(response.wake.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()
        if response.since is not None and not response.wake.is_set():
            response.advance(response.num_missing, self._current_version())

    def _settle(self, response: _Response) -> None:
        if response.since is not None:
            elapsed = self._clock.now() - response.since
            response.advance(int(elapsed * self._tokens_per_second), self._current_version())

    def _current_version(self) -> int:
        assert self._version is not None
        return self._version

    def _result(self, response: _Response) -> Generation:
        token_ids = response.token_ids[: response.num_generated]
        return Generation(
            token_ids=token_ids,
            behaviour_logprobs=_logprobs(token_ids, response.spans),
            spans=tuple(response.spans),
            finish_reason=FinishReason.ABORT if response.num_missing else response.finish_reason,
        )


def simulated_logprob(token_id: int, version: int) -> float:
    """The logprob that the simulated engine reports for a token under a version."""
    return -0.01 * (1 + (31 * token_id + 17 * version) % 97)


def _said(token_ids: Sequence[int], longest: int) -> _Response:
    reason = FinishReason.LENGTH if len(token_ids) > longest else FinishReason.STOP
    return _Response(int32_array(list(token_ids[:longest])), reason)


def _never(_: GenerationRequest) -> str | None:
    return None


def _logprobs(token_ids: Int32Array, spans: list[VersionSpan]) -> Float32Array:
    versions = [span.version for span in spans for _ in range(span.start, span.end)]
    return float32_array(
        [simulated_logprob(int(token), version) for token, version in zip(token_ids, versions, strict=True)]
    )
