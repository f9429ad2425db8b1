"""What log-probabilities in chunks of tokens take on a GPU: memory and seconds, of the output layer and of a step.

Memory is what torch's allocator has handed out at most, beyond what it had before. Both ways take turns, on the same
numbers and in the same process.
"""

from __future__ import annotations

import gc
import time
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.harness.figures import Figure, ratio_figure
from benchmarks.harness.random_model import random_model, shapes
from benchmarks.training.workloads import Workload, a_batch
from rollog.kernel.errors import EngineError
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.model.output_layer import LogitTransform, OutputComputation
from trainer.model.token_logprobs import LogprobSettings, token_logprobs
from trainer.step.ports import StepSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer.step.ports import TrainingBatch

num_tokens = 16_384
vocabulary = 152_000
chunk_tokens = 1024
_layers = (("0.5B", 896, torch.bfloat16), ("0.5B", 896, torch.float32), ("7B", 3584, torch.bfloat16))
"""Of which size of Qwen2.5 the output layer is, its hidden size, and the type of its weights."""
_time_target = 1.15
_memory_target = 1.5
_gibibyte = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds, and bytes taken at most beyond those that were there before and stay."""

    seconds: float
    peak_bytes: int


def name_of_gpu() -> str:
    """Raises EngineError where torch sees no GPU."""
    if not torch.cuda.is_available():
        raise EngineError(
            "--device gpu: torch sees no GPU on this machine; --device cpu measures without one"
        )
    return torch.cuda.get_device_name()


def measure_layer(*, num_pairs: int, seed: int) -> list[Figure]:
    """Output layers alone, forward and backward."""
    return [
        figure
        for model, hidden_size, dtype in _layers
        for figure in _layer_figures(model, hidden_size, dtype, num_pairs=num_pairs, seed=seed)
    ]


def measure_step(directory: Path, *, num_pairs: int, seed: int) -> list[Figure]:
    """A training step of DeepSpeed with a random model of 0.5 billion parameters in bfloat16."""
    workload = _step_workload(directory, seed)
    settings = StepSettings(
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(learning_rate=1e-6),
        num_optimizer_steps=2 * (num_pairs + 1),
    )
    trainer = TrainerConfig(zero_stage=1, num_minibatches=1, logprob_chunk_tokens=chunk_tokens)
    engine = DeepSpeedEngine(settings=settings, trainer=trainer, temperature=1.0, dtype="bfloat16")
    with closing(engine):
        engine.start(workload.model_path)
        policy: Any = vars(engine)["_state"].prepared.policy
        computations = {"chunks": policy.computation, "at_once": OutputComputation()}

        def step(way: str, batch: TrainingBatch) -> Cost:
            policy.computation = computations[way]
            return _cost_of(lambda: engine.train_step(batch))

        pairs = []
        for number in range(num_pairs + 1):
            batch = a_batch(workload, number=number, seed=seed)
            costs = {way: step(way, batch) for way in sorted(computations, reverse=number % 2 == 1)}
            pairs.append((costs["chunks"], costs["at_once"]))
    return _figures_of("step.0.5B", pairs[1:])  # the first ones allocate


def _step_workload(directory: Path, seed: int) -> Workload:
    """One optimizer step of 64 responses of 512 tokens, in passes of as many as fit 16,384 tokens."""
    shape = shapes["0.5b"]
    model = random_model(shape, max_context_tokens=1024, seed=seed)
    model.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    model.save_pretrained(directory)
    return Workload(
        name="0.5B",
        model_path=str(directory),
        vocabulary=shape.vocab_size,
        num_groups=8,
        group_size=8,
        num_minibatches=1,
        micro_batch_tokens=num_tokens,
        prompt_tokens=(64, 64),
        response_tokens=(512,),
    )


def _layer_figures(
    model: str, hidden_size: int, dtype: torch.dtype, *, num_pairs: int, seed: int
) -> list[Figure]:
    draw = torch.Generator("cuda").manual_seed(seed)
    hidden_NH, weight_VH = (
        torch.randn(size, hidden_size, device="cuda", dtype=dtype, generator=draw).requires_grad_()
        for size in (num_tokens, vocabulary)
    )
    with torch.no_grad():
        weight_VH *= hidden_size**-0.5
    target_N = torch.randint(vocabulary, (num_tokens,), device="cuda", generator=draw)
    settings = LogprobSettings(chunk_tokens=chunk_tokens, temperature=1.0, transform=LogitTransform())
    ways: dict[str, Callable[[], Tensor]] = {
        "chunks": lambda: token_logprobs(hidden_NH, weight_VH, None, target_N, settings)[:, 0],
        "at_once": lambda: _at_once(hidden_NH, weight_VH, target_N),
    }

    def both_passes(way: str) -> Cost:
        hidden_NH.grad = weight_VH.grad = None
        return _cost_of(lambda: ways[way]().sum().backward())  # type: ignore[no-untyped-call]

    pairs = []
    for number in range(num_pairs + 1):
        costs = {way: both_passes(way) for way in sorted(ways, reverse=number % 2 == 1)}
        pairs.append((costs["chunks"], costs["at_once"]))
    name = f"layer.{model}.{str(dtype).removeprefix('torch.')}"
    sum_bytes = 0 if dtype is torch.float32 else weight_VH.numel() * 4
    chunk_bytes = chunk_tokens * vocabulary * 4
    return [
        *_figures_of(name, pairs[1:]),
        Figure(
            name=f"logprobs.{name}.chunk_peak",
            value=(max(chunks.peak_bytes for chunks, _ in pairs) - sum_bytes) / chunk_bytes,
            unit="chunk x vocabulary x 4 bytes, beside inputs, gradients and their sum in float32",
            target=_memory_target,
            higher_is_better=False,
        ),
    ]


def _at_once(hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor) -> Tensor:
    """As `trainer.model.policy.Policy` computes without chunks."""
    logits_NV = linear(hidden_NH, weight_VH).float()
    return logits_NV.gather(1, target_N[:, None])[:, 0] - logits_NV.logsumexp(dim=1)


def _cost_of(work: Callable[[], object]) -> Cost:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    # Gradients that stay are no memory that the way of computing takes.
    kept = max(torch.cuda.memory_allocated() - before, 0)
    return Cost(seconds=seconds, peak_bytes=torch.cuda.max_memory_allocated() - before - kept)


def _figures_of(name: str, pairs: list[tuple[Cost, Cost]]) -> list[Figure]:
    return [
        *(
            Figure(
                name=f"logprobs.{name}.{way}.{what}",
                value=value,
                unit=unit,
                higher_is_better=False,
            )
            for side, way in enumerate(("chunks", "at_once"))
            for what, value, unit in (
                ("seconds", fmean(pair[side].seconds for pair in pairs), "s"),
                ("memory", max(pair[side].peak_bytes for pair in pairs) / _gibibyte, "GiB, at most"),
            )
        ),
        ratio_figure(
            f"logprobs.{name}.cost",
            "seconds in chunks / those all at once",
            [(chunks.seconds, at_once.seconds) for chunks, at_once in pairs],
            target=_time_target,
            higher_is_better=False,
        ),
    ]
