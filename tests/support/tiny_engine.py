"""An inference engine on a tiny random model, beside the same weights in plain transformers."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from producers.engines.ports import Engine, Generation, GenerationRequest
from producers.engines.simulated import SimulatedEngine, simulated_logprob
from producers.engines.transformers_engine import TransformersEngine
from producers.engines.vllm import VllmEngine
from producers.engines.weights_file import model_tensors
from producers.rollout.prompts import ByteTokenizer
from schemas import SamplingParameters
from support.waiting import max_wait_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence
    from pathlib import Path

end_token_id = 1
vocabulary_size = 40
max_context_tokens = 128
tokens_per_pass = 256
"""Of vLLM: few enough for prompts to wait for each other."""
_poll_seconds = 0.005


class HeldUpClock:
    """Real time that stands still while this process is held up.

    So a simulated response lasts as long as other threads of a busy process need to come to it.
    """

    def __init__(self) -> None:
        self._seen = time.monotonic()
        self._now = 0.0

    def now(self) -> float:
        """At most two polls' time passes from one poll to the next."""
        seen = time.monotonic()
        self._now += min(seen - self._seen, 2 * _poll_seconds)
        self._seen = seen
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Poll until so much has passed."""
        end = self.now() + seconds
        await asyncio.sleep(0)
        while self.now() < end:  # noqa: ASYNC110 - nobody tells of time
            await asyncio.sleep(_poll_seconds)


def _simulated(model: str) -> Engine:
    return SimulatedEngine(
        clock=HeldUpClock(),
        tensors=model_tensors(model),
        tokens_per_second=500,
        max_context_tokens=max_context_tokens,
        vocabulary_size=vocabulary_size,
    )


def _transformers(model: str) -> Engine:
    return TransformersEngine(model, max_context_tokens=max_context_tokens)


def _vllm(model: str) -> Engine:
    return VllmEngine(
        model, max_context_tokens=max_context_tokens, engine_args={"max_num_batched_tokens": tokens_per_pass}
    )


@dataclass
class Bench:
    """An engine, its model, and the loop that both live on."""

    engine: Engine
    model: Path
    tied: bool
    versions: dict[int, Path]
    runner: asyncio.Runner
    counter: int = 0
    loaded: int = 0
    swapped: asyncio.Event = field(default_factory=asyncio.Event)
    references: dict[int, Any] = field(default_factory=dict)

    def run(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(scenario, 2 * max_wait_seconds))

    def request(
        self, *, seed: int = 0, num_prompt_tokens: int = 6, max_tokens: int = 24, temperature: float = 1.0
    ) -> GenerationRequest:
        self.counter += 1
        prompt = [2 + (seed * 7 + at * 3) % (vocabulary_size - 2) for at in range(num_prompt_tokens)]
        return GenerationRequest(
            request_id=f"request-{self.counter}",
            prompt_token_ids=prompt,
            sampling=SamplingParameters(temperature=temperature, max_tokens=max_tokens),
            seed=seed,
        )

    async def generated(
        self, requests: Sequence[GenerationRequest]
    ) -> list[tuple[GenerationRequest, Generation]]:
        """All at once, each with its response."""
        return list(zip(requests, await asyncio.gather(*map(self.engine.generate, requests)), strict=True))

    async def swap(self, version: int) -> None:
        await self.engine.pause()
        await self.engine.load_weights(self.versions[version], version)
        await self.engine.resume()
        self.loaded = version

    def expected_logprobs(self, request: GenerationRequest, generation: Generation) -> np.ndarray[Any, Any]:
        """Logprob of each token under the weights of the version its span names."""
        parts = [
            self._logprobs(request, generation, span.version)[span.start : span.end]
            for span in generation.spans
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _logprobs(
        self, request: GenerationRequest, generation: Generation, version: int
    ) -> np.ndarray[Any, Any]:
        if self.engine.name == "simulated":
            return np.array([simulated_logprob(int(token), version) for token in generation.token_ids])
        model = self.reference(version)
        sequence = torch.tensor([[*request.prompt_token_ids, *generation.token_ids.tolist()]])
        with torch.inference_mode():
            logits = model(sequence).logits[0, len(request.prompt_token_ids) - 1 : -1].float()
        logprobs = (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)
        return np.asarray(logprobs.gather(1, sequence[0, len(request.prompt_token_ids) :, None])[:, 0])

    def reference(self, version: int) -> Any:
        """The same weights in plain transformers."""
        if version not in self.references:
            model: Any = Qwen2ForCausalLM(Qwen2Config.from_pretrained(self.model))  # type: ignore[no-untyped-call]
            model.load_state_dict(load_file(self.versions[version]), strict=not self.tied)
            self.references[version] = model.eval()
        return self.references[version]


def save_versions(directory: Path, tied: bool, num_versions: int = 7) -> dict[int, Path]:
    """A model directory (structure only) and weights files of several unrelated random versions."""
    torch.manual_seed(7)
    config = Qwen2Config(
        vocab_size=vocabulary_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_context_tokens,
        initializer_range=0.1,
        tie_word_embeddings=tied,
        eos_token_id=end_token_id,
        bos_token_id=None,
    )
    config.save_pretrained(directory)
    paths = {}
    for version in range(num_versions):
        paths[version] = directory / f"v{version}.safetensors"
        model: Any = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
        parameters = model.named_parameters()
        save_file({name: tensor.detach().clone() for name, tensor in parameters}, paths[version])
    return paths


makers = {"simulated": _simulated, "transformers": _transformers, "vllm": _vllm}


@asynccontextmanager
async def in_flight(
    bench: Bench, count: int
) -> AsyncIterator[list[tuple[GenerationRequest, asyncio.Task[Generation]]]]:
    """Requests that are being generated while the body runs."""
    requests = [bench.request(seed=seed, max_tokens=90) for seed in range(count)]
    tasks = [asyncio.create_task(bench.engine.generate(request)) for request in requests]
    await asyncio.sleep(0)
    yield list(zip(requests, tasks, strict=True))
    await asyncio.gather(*tasks, return_exceptions=True)


def close_to(bench: Bench, request: GenerationRequest, generation: Generation) -> None:
    expected = bench.expected_logprobs(request, generation)
    assert len(expected) == len(generation.token_ids)
    np.testing.assert_allclose(generation.behaviour_logprobs, expected, rtol=0, atol=1e-4)


class LentEngine:
    """The bench's engine for one worker, which neither starts nor ends it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.parts: dict[str, list[Generation]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self) -> None:
        pass

    async def generate(self, request: GenerationRequest) -> Generation:
        part = await self._engine.generate(request)
        self.parts.setdefault(request.request_id.partition("~")[0], []).append(part)
        return part

    async def close(self) -> None:
        pass


class SmallTokenizer(ByteTokenizer):
    """Bytes as words of the small models."""

    def encode(self, text: str, **options: bool) -> list[int]:
        numbers = super().encode(text, **options)
        return [2 + number % (vocabulary_size - 2) for number in numbers]
