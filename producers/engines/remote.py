"""The engine of a worker whose model is computed by a vLLM server elsewhere: tokens in and out over HTTP.

    generate      POST /inference/v1/generate         ids in; ids, log-probabilities and marks of the weights out
    abort         POST /inference/v1/abort_requests   until the request has ended: it may still be on its way
    pause         POST /pause?mode=keep               running requests stay in the server, their attention state goes
    load_weights  POST /update_weight_version "unfit", /collective_rpc rollog_load, /update_weight_version mark
    resume        POST /resume

The server keeps its own life: this neither starts nor ends it. What ends the engine (EngineDied, and the worker is
started again): the server does not answer, lost its weights, or computed tokens with weights that this engine did not
load. An answer that comes while weights are loaded waits until they are known to be ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from producers.engines.lifeline import Lifeline
from producers.engines.model_files import end_token_ids, read_json
from producers.engines.ports import Generation, GenerationRequest
from producers.engines.remote_answers import Answer, Marks, prompt_logprobs_in
from producers.engines.remote_calls import ServerCalls, ServerRefused
from producers.engines.remote_state import ServerState, check_state, refusal_of, server_state
from producers.engines.served_weights import file_digest
from producers.engines.stop_texts import cut_off
from rollog.kernel.errors import ConfigError, EngineDied, EngineError, WeightsError
from rollog.kernel.logs import get_logger
from schemas import FinishReason, SamplingParameters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from producers.engines.remote_calls import InferenceServer
    from schemas import Float32Array

_log = get_logger("rollout")
_generate = "/inference/v1/generate"
_abort = "/inference/v1/abort_requests"
_first_pause_seconds = 0.01
_longest_pause_seconds = 0.5
_start_pause_seconds = 0.5


@dataclass(eq=False)
class _Call:
    """A request in the server. `last_load` is the newest load of which an aborted one may hold tokens."""

    name: str
    is_aborted: bool = False
    last_load: int | None = None
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)


class RemoteEngine:
    """One model in one server, which works for this engine alone.

    `model` gives structure and end tokens; `watch_seconds` is how often the server is asked whether it still has the
    weights that were loaded.
    """

    name = "remote"

    def __init__(
        self,
        server: InferenceServer,
        model: str,
        *,
        dtype: str = "float32",
        max_context_tokens: int = 2048,
        watch_seconds: float = 5.0,
    ) -> None:
        self.max_context_tokens = max_context_tokens
        self.engine_version = "unknown"
        self._server = server
        self._model = model
        self._dtype = dtype
        self._watch_seconds = watch_seconds
        self._word = secrets.token_hex(8)
        self._marks = Marks(self._word)
        self._stop_token_ids: tuple[int, ...] = ()
        self._vocabulary_size = 0
        self._calls: ServerCalls | None = None
        self._in_flight: dict[str, _Call] = {}
        self._is_serving = False
        self._is_settled = asyncio.Event()
        self._is_settled.set()
        self._lifeline: Lifeline | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait until the server answers, compare it with the settings and try it out.

        Raises ConfigError for a wrong key, model or server; EngineError where nothing answers in time.
        """
        self._lifeline = Lifeline()
        self._calls = ServerCalls(self._server)
        state = await self._answering()
        config = read_json(self._model, "config.json")
        check_state(
            state, self._server, config=config, dtype=self._dtype, max_context_tokens=self.max_context_tokens
        )
        if state.is_open:
            _log.warning("the server loads weights without a key", address=self._server.address)
        self.engine_version = state.version
        self._vocabulary_size = state.vocabulary_size
        self._stop_token_ids = end_token_ids(self._model)
        # A worker that died in a swap left the server paused, and a request would wait for ever.
        await self._calls.post("/resume")
        await self._try_out()
        self._watch = asyncio.create_task(self._keep_watch(), name="watch of the server")

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one response. Raises EngineError; EngineDied when server or weights are gone."""
        self._life.check()
        if not self._is_serving:
            raise EngineError("no weights are loaded; wait for the first version")
        self._check(request)
        call = self._in_flight[request.request_id] = _Call(f"{self._word}-{request.request_id}")
        try:
            answer, num_tokens = await self._life.while_it_lasts(self._answer_to(request, call))
            call.has_ended.set()
            # Until a load is settled nobody knows whether the server's mark speaks of the weights that it has.
            await self._life.while_it_lasts(self._is_settled.wait())
        finally:
            call.has_ended.set()
            del self._in_flight[request.request_id]
        generation = self._credited(answer, call)
        if num_tokens is None or num_tokens > len(generation.token_ids):
            return generation
        return cut_off(generation, num_tokens)

    async def prompt_logprobs(self, token_ids: Sequence[int], request_id: str) -> Float32Array:
        """What the server gives of a prompt. Raises EngineError; EngineDied when server or weights are gone."""
        sampling = SamplingParameters(temperature=0.0, max_tokens=1)
        request = GenerationRequest(
            request_id=request_id, prompt_token_ids=token_ids, sampling=sampling, seed=0
        )
        self._check(request)
        body = self._body(request, _Call(f"{self._word}-{request_id}"), 1)
        body["sampling_params"]["prompt_logprobs"] = 0
        return prompt_logprobs_in(
            await self._life.while_it_lasts(self._open.post(_generate, body)), token_ids
        )

    async def abort(self, request_id: str) -> None:
        """Make the matching `generate` return what it has; returns when the server has ended the request."""
        call = self._in_flight.get(request_id)
        if call is None:
            return
        if call.last_load is None:
            call.last_load = self._marks.num_loads
        pause_seconds = _first_pause_seconds
        while not call.has_ended.is_set():
            await self._post_abort(call)
            # The request may reach the server behind its abort, which the server forgets.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(call.has_ended.wait(), pause_seconds)
            pause_seconds = min(2 * pause_seconds, _longest_pause_seconds)

    async def pause(self) -> None:
        """Freeze all requests in the server; their attention state is dropped and recomputed after `resume`."""
        await self._life.while_it_lasts(self._open.post("/pause?mode=keep&clear_cache=true"))

    async def load_weights(self, path: Path, version: int) -> None:
        """Have the server overwrite its weights by a file that both see.

        Raises WeightsError; then nothing is served.
        """
        self._is_serving = False
        self._is_settled.clear()
        try:
            await self._life.while_it_lasts(self._load(path, version))
        finally:
            self._is_settled.set()
        self._is_serving = True

    async def resume(self) -> None:
        """Go on with the frozen requests."""
        await self._life.while_it_lasts(self._open.post("/resume"))

    async def close(self) -> None:
        """End the connections, and with them what the server computes for this engine. The server stays."""
        self._is_serving = False
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._calls is not None:
            await self._calls.close()

    @property
    def _life(self) -> Lifeline:
        assert self._lifeline is not None, "start() first"
        return self._lifeline

    @property
    def _open(self) -> ServerCalls:
        assert self._calls is not None, "start() first"
        return self._calls

    async def _answering(self) -> ServerState:
        deadline = time.monotonic() + self._server.start_seconds
        while True:
            try:
                return await server_state(self._open)
            except EngineError as error:
                if time.monotonic() >= deadline:
                    raise EngineError(
                        f"{error}; nothing answered for {self._server.start_seconds:g} s "
                        "(rollout.server_start_seconds): start the server, or correct rollout.server_address"
                    ) from error
                _log.info("waiting for the server", address=self._server.address, reason=str(error))
            await asyncio.sleep(_start_pause_seconds)

    def _credited(self, answer: Answer, call: _Call) -> Generation:
        if answer.finish_reason is FinishReason.ABORT and not call.is_aborted:
            self._life.end(
                f"the server at {self._server.address} ended a request that nobody aborted: it is being stopped, or "
                "somebody else uses it"
            )
        self._life.check()
        try:
            return self._marks.generation(answer, last_load=call.last_load)
        except EngineDied as error:
            self._life.end(str(error))
            raise

    def _check(self, request: GenerationRequest) -> None:
        num_tokens = len(request.prompt_token_ids)
        if not 0 < num_tokens < self.max_context_tokens:
            raise EngineError(
                f"request {request.request_id} has {num_tokens} prompt tokens; the engine takes 1 to "
                f"{self.max_context_tokens - 1}, so that a response fits"
            )
        # One such id would end vLLM's process, and with it all requests.
        if not 0 <= min(request.prompt_token_ids) <= max(request.prompt_token_ids) < self._vocabulary_size:
            raise EngineError(
                f"request {request.request_id} has tokens from {min(request.prompt_token_ids)} to "
                f"{max(request.prompt_token_ids)}; the model has 0 to {self._vocabulary_size - 1}"
            )

    async def _answer_to(self, request: GenerationRequest, call: _Call) -> tuple[Answer, int | None]:
        """What the server made, and with how many tokens a stop text was complete."""
        room = self.max_context_tokens - len(request.prompt_token_ids)
        most_tokens = min(request.sampling.max_tokens, room)
        answer = Answer(request.prompt_token_ids, self._vocabulary_size, most_tokens)
        body = self._body(request, call, most_tokens)
        if request.stop is None:
            answer.add(await self._open.post(_generate, body, is_bounded=False))
            return answer.whole(), None
        num_seen, num_tokens = 0, None
        async with contextlib.aclosing(self._open.events(_generate, body | {"stream": True})) as events:
            async for piece in events:
                answer.add(piece)
                if num_tokens is None:
                    num_tokens = request.stop.num_tokens(answer.token_ids, num_seen)
                    num_seen = len(answer.token_ids)
                    if num_tokens is not None:
                        await self._post_abort(call)  # what is made until then is cut off
        return answer.whole(), num_tokens

    def _body(self, request: GenerationRequest, call: _Call, most_tokens: int) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "request_id": call.name,
            "token_ids": list(request.prompt_token_ids),
            "return_token_ids": True,
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
                "max_tokens": most_tokens,
                "seed": request.seed,
                "stop_token_ids": [*self._stop_token_ids, *sampling.stop_token_ids],
                "logprobs": 0,
                "detokenize": False,
            },
        }

    async def _post_abort(self, call: _Call) -> None:
        call.is_aborted = True
        # vLLM puts this word before the name of a request.
        await self._life.while_it_lasts(
            self._open.post(_abort, {"request_ids": [f"generate-tokens-{call.name}"]})
        )

    async def _load(self, path: Path, version: int) -> None:
        digest = await asyncio.to_thread(file_digest, path)
        place = os.path.abspath(path)  # noqa: PTH100, ASYNC240 - asks no disk, and follows no link: the server may have others
        mark = self._marks.load(version)
        await self._set_mark(self._marks.unfit)
        told = await self._open.on_workers(
            "rollog_load", place, digest, mark, seconds=self._server.load_seconds
        )
        refusals = [each["refused"] for each in told if "refused" in each]
        if refusals:
            raise WeightsError(f"the server could not load {path.name}: {refusals[0]}")
        await self._set_mark(mark)
        # Another worker may have loaded between the two: then neither mark nor weights are to be believed.
        told = await self._open.on_workers("rollog_loaded")
        if any(each.get("mark") != mark for each in told) or await self._server_mark() != mark:
            raise EngineDied(
                f"somebody else loaded weights into the server at {self._server.address}: one worker to a server"
            )

    async def _set_mark(self, mark: str) -> None:
        await self._open.post("/update_weight_version", {"new_version": mark})

    async def _server_mark(self) -> str | None:
        info = await self._open.get("/weight_info")
        return info.get("weight_version") if isinstance(info, dict) else None

    async def _try_out(self) -> None:
        """Generate one token under no version: ids, log-probabilities and marks come.

        Raises ConfigError, EngineDied.
        """
        answer = Answer([0], self._vocabulary_size, 1)
        sampling = SamplingParameters(temperature=1.0, max_tokens=1)
        request = GenerationRequest(request_id="trial", prompt_token_ids=[0], sampling=sampling, seed=0)
        body = self._body(request, _Call(f"{self._word}-trial"), 1)
        try:
            answer.add(await self._open.post(_generate, body))
            answer.whole()
        except ServerRefused as error:
            raise refusal_of(error, self._server) from error
        except EngineDied:
            raise
        except EngineError as error:
            raise ConfigError(f"{self._server.address} cannot be generated with: {error}") from error

    async def _keep_watch(self) -> None:
        """Notice a server that is gone, or was started again, also when nothing is being generated."""
        while True:
            await asyncio.sleep(self._watch_seconds)
            expected = self._marks.current
            try:
                found = await self._server_mark()
            except EngineError as error:
                # Loading, the server answers nothing else, for as long as the load may take.
                if self._is_settled.is_set() and expected == self._marks.current:
                    self._life.end(str(error))
                continue
            if self._is_serving and expected == self._marks.current and found != expected:
                self._life.end(
                    f"the weights in the server at {self._server.address} are called {found!r} and not {expected!r}: "
                    "it was started again, or another worker uses it"
                )
