"""The fallback engine: plain transformers, one thread that advances all running requests token by token.

Requests share one left-padded batch and its attention cache. The cache is built again when requests join or the
weights change, so every token is computed under exactly the version it is labelled with.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from producers.engines.model_files import end_token_ids
from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from producers.engines.starting import Start
from producers.engines.weights_file import ModelTensors, check_weights_file, model_tensors
from rollog.kernel.errors import EngineError
from rollog.kernel.versions.adapted_layers import AdaptedLayers
from rollog.kernel.versions.files import merged_tensors
from schemas import FinishReason, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from schemas import Float32Array, SamplingParameters

_Result = TypeVar("_Result")


@dataclass(eq=False)
class _Running:
    """One request in the batch."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    generator: torch.Generator
    processors: LogitsProcessorList
    stop_token_ids: frozenset[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def sequence(self) -> list[int]:
        return [*self.request.prompt_token_ids, *self.token_ids]

    def append(self, token_id: int, logprob: float, version: int) -> None:
        """Add one sampled token and notice the end of the response."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.versions.append(version)
        stop = self.request.stop
        if token_id in self.stop_token_ids or (stop is not None and stop.is_complete(self.token_ids)):
            self.finish_reason = FinishReason.STOP
        elif len(self.token_ids) >= self.request.sampling.max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def result(self) -> Generation:
        """What there is so far."""
        return Generation(
            token_ids=int32_array(self.token_ids),
            behaviour_logprobs=float32_array(self.logprobs),
            spans=_spans(self.versions),
            finish_reason=self.finish_reason or FinishReason.ABORT,
        )


@dataclass(eq=False)
class _Batch:
    """The rows that are computed together: cache, mask [row, position], next token's logits [row, word]."""

    rows: list[_Running]
    cache: DynamicCache
    mask: torch.Tensor
    logits: torch.Tensor


class TransformersEngine:
    """One model computed by transformers, on a GPU where there is one."""

    name = "transformers"
    engine_version = transformers.__version__

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "float32",
        max_context_tokens: int = 2048,
        capacity: int = 64,
        num_threads: int = 1,
    ) -> None:
        self.max_context_tokens = max_context_tokens
        self._model_path = model
        self._dtype = getattr(torch, dtype)
        self._capacity = capacity
        self._num_threads = num_threads
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model: Any = None
        self._tensors = ModelTensors({})
        self._adapted = AdaptedLayers()
        self._stop_token_ids: tuple[int, ...] = ()
        self._version: int | None = None
        self._requests: dict[str, _Running] = {}
        self._waiting: list[_Running] = []
        self._batch: _Batch | None = None
        self._paused = False
        self._closed = False
        self._start = Start()
        # Everything below the public methods belongs to the thread; the loop only sends it these.
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="transformers-engine", daemon=True)

    async def start(self) -> None:
        """Start the thread and build the model with random weights."""
        self._thread.start()
        await self._do(self._build)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one response. Raises EngineError."""
        running = self._admit(request)
        self._commands.put(partial(self._join, running))
        return await running.future

    async def prompt_logprobs(self, token_ids: Sequence[int], request_id: str) -> Float32Array:
        """One forward pass over the whole sequence, between two tokens."""
        del request_id
        return await self._do(partial(self._prompt_logprobs, token_ids))

    async def abort(self, request_id: str) -> None:
        """Make the matching `generate` return what it has, before the next token."""
        self._commands.put(partial(self._abort, request_id))

    async def pause(self) -> None:
        """Stop after the token in computation."""
        await self._do(partial(self._set_paused, True))

    async def load_weights(self, path: Path, version: int) -> None:
        """Overwrite the weights in place. Raises WeightsError; then nothing is served."""
        await self._do(partial(self._load, path, version))

    async def resume(self) -> None:
        """Go on with the frozen requests."""
        await self._do(partial(self._set_paused, False))

    async def close(self) -> None:
        """End the thread, also one that is still building the model."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._start.abandon, _do_nothing)
            await self._do(self._set_closed)
            self._thread.join()

    async def _do(self, action: Callable[[], _Result]) -> _Result:
        """Run `action` on the thread, between two tokens."""
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()

        def command() -> None:
            try:
                result = action()
            except Exception as error:  # noqa: BLE001  # belongs to the caller, on the other thread
                _resolve(future, error)
            else:
                _resolve(future, result)

        self._commands.put(command)
        return await future

    def _build(self) -> None:
        with self._start.under_way():
            self._build_model()

    def _build_model(self) -> None:
        torch.set_num_threads(self._num_threads)
        self._tensors = model_tensors(self._model_path)
        self._stop_token_ids = end_token_ids(self._model_path)
        config = AutoConfig.from_pretrained(self._model_path)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=self._dtype)  # type: ignore[no-untyped-call]
        self._model = model.to(self._device).eval().requires_grad_(False)

    def _load(self, path: Path, version: int) -> None:
        self._version = None
        adapter = check_weights_file(path, self._tensors)
        tensors = merged_tensors(path, load_file)
        self._drop_cache()
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(tensors[name])
        self._adapted.apply(self._model, adapter, tensors)
        self._version = version

    @torch.inference_mode()
    def _prompt_logprobs(self, token_ids: Sequence[int]) -> Float32Array:
        if self._version is None:
            raise EngineError("no weights are loaded; wait for the first version")
        tokens_1T = torch.tensor([list(token_ids)], device=self._device)
        logprobs_TV = self._model(input_ids=tokens_1T, use_cache=False).logits[0].float().log_softmax(dim=-1)
        own_T = logprobs_TV[:-1].gather(1, tokens_1T[0, 1:, None])[:, 0]
        return float32_array([0.0, *own_T.tolist()])

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused

    def _set_closed(self) -> None:
        self._closed = True
        self._fail(EngineError("the engine was closed"))

    def _join(self, running: _Running) -> None:
        if self._version is None:
            _resolve(running.future, EngineError("no weights are loaded; wait for the first version"))
            return
        self._requests[running.request.request_id] = running
        self._waiting.append(running)

    def _abort(self, request_id: str) -> None:
        running = self._requests.get(request_id)
        if running is not None:
            self._waiting = [other for other in self._waiting if other is not running]
            self._remove([running])

    def _admit(self, request: GenerationRequest) -> _Running:
        num_tokens = len(request.prompt_token_ids)
        if not 0 < num_tokens < self.max_context_tokens:
            raise EngineError(
                f"request {request.request_id} has {num_tokens} prompt tokens; the engine takes 1 to "
                f"{self.max_context_tokens - 1}, so that a response fits"
            )
        return _Running(
            request=request,
            future=asyncio.get_running_loop().create_future(),
            generator=torch.Generator().manual_seed(request.seed),
            processors=_processors(request.sampling),
            stop_token_ids=frozenset((*self._stop_token_ids, *request.sampling.stop_token_ids)),
        )

    def _run(self) -> None:
        while not self._closed:
            self._obey()
            if self._has_work:
                try:
                    self._step()
                except Exception as error:  # noqa: BLE001  # the loop's edge: whoever waits learns of it
                    self._fail(EngineError(f"transformers failed: {type(error).__name__}: {error}"))

    @property
    def _has_work(self) -> bool:
        return bool(self._requests) and not (self._paused or self._closed)

    def _obey(self) -> None:
        """Run all commands that came; wait for one when there is nothing else to do."""
        while not (self._closed or (self._has_work and self._commands.empty())):
            self._commands.get()()

    @torch.inference_mode()
    def _step(self) -> None:
        """Sample one token for every row, end what is done, compute the logits of the next token."""
        if self._batch is None or (self._waiting and len(self._batch.rows) < self._capacity):
            self._build_batch()
        batch = self._batch
        assert batch is not None
        assert self._version is not None
        logits_BV = batch.logits.float().cpu()
        for row, running in enumerate(batch.rows):
            token_id, logprob = _sample(logits_BV[row], running)
            running.append(token_id, logprob, self._version)
            if len(running.sequence) >= self.max_context_tokens and running.finish_reason is None:
                running.finish_reason = FinishReason.LENGTH
        self._remove([running for running in batch.rows if running.finish_reason is not None])
        if self._batch is not None:
            self._advance(self._batch)

    def _build_batch(self) -> None:
        """Compute the whole sequences of all running and as many waiting requests as there is room for."""
        rows = [*(self._batch.rows if self._batch is not None else ()), *self._waiting]
        rows, self._waiting = rows[: self._capacity], rows[self._capacity :]
        longest = max(len(running.sequence) for running in rows)
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        mask_BS = torch.zeros(len(rows), longest, dtype=torch.long)
        for row, running in enumerate(rows):
            sequence = running.sequence
            tokens[row, longest - len(sequence) :] = torch.tensor(sequence)
            mask_BS[row, longest - len(sequence) :] = 1
        mask_BS = mask_BS.to(self._device)
        cache = DynamicCache(config=self._model.config)
        logits_BV = self._forward(tokens.to(self._device), mask_BS, cache)
        self._batch = _Batch(rows, cache, mask_BS, logits_BV)

    def _advance(self, batch: _Batch) -> None:
        newest = torch.tensor([[running.token_ids[-1]] for running in batch.rows], device=self._device)
        ones = batch.mask.new_ones(len(batch.rows), 1)
        batch.mask = torch.cat([batch.mask, ones], dim=1)
        batch.logits = self._forward(newest, batch.mask, batch.cache)

    def _forward(self, tokens_BT: torch.Tensor, mask_BS: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        positions_BS = (mask_BS.cumsum(dim=1) - 1).clamp(min=0)
        output = self._model(
            input_ids=tokens_BT,
            attention_mask=mask_BS,
            position_ids=positions_BS[:, -tokens_BT.shape[1] :],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_BV: torch.Tensor = output.logits[:, -1]
        return logits_BV

    def _remove(self, ended: list[_Running]) -> None:
        """Take requests out of the batch and hand out their results."""
        if not ended:
            return
        batch = self._batch
        if batch is not None:
            kept = [row for row, running in enumerate(batch.rows) if running not in ended]
            if not kept:
                self._batch = None
            elif len(kept) < len(batch.rows):
                _select_rows(batch, kept)
        for running in ended:
            del self._requests[running.request.request_id]
            _resolve(running.future, running.result())

    def _drop_cache(self) -> None:
        """Forget computed attention: everything that runs is computed again before its next token."""
        if self._batch is not None:
            self._waiting = [*self._batch.rows, *self._waiting]
            self._batch = None

    def _fail(self, error: EngineError) -> None:
        """End every request with `error`."""
        self._batch, self._waiting = None, []
        failed, self._requests = list(self._requests.values()), {}
        for running in failed:
            _resolve(running.future, error)


def _do_nothing() -> None:
    """There are no processes to end."""


def _select_rows(batch: _Batch, kept: list[int]) -> None:
    index = torch.tensor(kept, device=batch.logits.device)
    batch.rows = [batch.rows[row] for row in kept]
    batch.cache.batch_select_indices(index)
    batch.mask = batch.mask[index]
    batch.logits = batch.logits[index]


def _processors(sampling: SamplingParameters) -> LogitsProcessorList:
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.top_k > 0:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors


def _sample(logits_V: torch.Tensor, running: _Running) -> tuple[int, float]:
    """One token and its logprob under the distribution it was drawn from (greedy: at temperature 1)."""
    temperature = running.request.sampling.temperature
    scores_V = logits_V / temperature if temperature > 0 else logits_V
    if running.processors:
        sequences: Any = torch.tensor([running.sequence])
        scores: Any = scores_V[None]
        scores_V = running.processors(sequences, scores)[0]
    logprobs_V = scores_V.log_softmax(dim=-1)
    if temperature > 0:
        # The largest of logprob minus log of exponential noise is a draw from the distribution.
        noise_V = torch.empty_like(logprobs_V).exponential_(generator=running.generator)
        token_id = int((logprobs_V - noise_V.log()).argmax())
    else:
        token_id = int(logprobs_V.argmax())
    return token_id, float(logprobs_V[token_id])


def _spans(versions: list[int]) -> tuple[VersionSpan, ...]:
    starts = [at for at, version in enumerate(versions) if at == 0 or version != versions[at - 1]]
    ends = [*starts[1:], len(versions)]
    return tuple(
        VersionSpan(version=versions[start], start=start, end=end)
        for start, end in zip(starts, ends, strict=False)
    )


def _resolve(future: asyncio.Future[Any], outcome: object) -> None:
    """Hand a result to the loop that waits for it, from this thread."""

    def resolve() -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    future.get_loop().call_soon_threadsafe(resolve)
