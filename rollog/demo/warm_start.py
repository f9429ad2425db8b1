"""Supervised warm start of the demo's policy on random demonstrations.

The same seed gives the same bytes on the same machine and library versions, whatever the number of cores:
one thread, deterministic algorithms, its own random generators.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rollog.demo.countdown import demonstration, problems
from rollog.demo.model import encode_words, new_model
from rollog.demo.word_models import eos_token_id, pad_token_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import Qwen2ForCausalLM

    from rollog.demo.countdown import Problem
    from rollog.demo.settings import WarmStartSettings

ignored_label = -100

Tensors = tuple[Tensor, Tensor]


def train(
    seed: int, settings: WarmStartSettings, on_progress: Callable[[float], None] | None = None
) -> Qwen2ForCausalLM:
    """Train a new model; `on_progress` is told the finished fraction after every step."""
    with single_threaded():
        model = new_model(seed)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, settings))
        rng = random.Random(seed)  # noqa: S311  reproducible on purpose
        for step, micro_batches in enumerate(_batches(rng, settings), start=1):
            num_learnt = sum(int((labels_BT != ignored_label).sum()) for _, labels_BT in micro_batches)
            for input_ids_BT, labels_BT in micro_batches:
                torch.autograd.backward(_summed_loss(model, input_ids_BT, labels_BT) / num_learnt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_gradient_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if on_progress is not None:
                on_progress(step / settings.num_steps)
    return model


def rate_at(step: int, settings: WarmStartSettings) -> float:
    """Factor on the learning rate: linear warm-up, flat, linear decay to zero."""
    warm = (step + 1) / max(1, settings.num_warmup_steps)
    remaining = (settings.num_steps - step) / max(1.0, settings.decay_fraction * settings.num_steps)
    return min(1.0, warm, remaining)


@contextmanager
def single_threaded() -> Iterator[None]:
    """One thread and deterministic algorithms inside; the settings of before afterwards."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(mode=deterministic)


def _summed_loss(model: Qwen2ForCausalLM, input_ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
    logits_BTV = model(input_ids=input_ids_BT, use_cache=False).logits
    return cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1),
        labels_BT[:, 1:].flatten(),
        ignore_index=ignored_label,
        reduction="sum",
    )


def _batches(rng: random.Random, settings: WarmStartSettings) -> Iterator[list[Tensors]]:
    """Per step the micro-batches that make it up, cut from examples in order of length to save padding."""
    pool = problems(held_out=False)
    for step in range(settings.num_steps):
        practising = step < settings.practice_fraction * settings.num_steps
        drawn = rng.choices(pool, k=settings.batch_size)
        examples = sorted(
            (_example(problem, rng, settings, practising=practising) for problem in drawn), key=_length
        )
        size = -(-settings.batch_size // settings.num_micro_batches)
        yield [_padded(examples[start : start + size]) for start in range(0, len(examples), size)]


def _example(
    problem: Problem, rng: random.Random, settings: WarmStartSettings, *, practising: bool
) -> tuple[list[int], list[int]]:
    response = demonstration(
        problem,
        rng,
        stop_after_hit=0.0 if practising else settings.stop_after_hit,
        stop_after_miss=0.0 if practising else settings.stop_after_miss,
    )
    return encode_words(problem.prompt), [*encode_words(response), eos_token_id]


def _length(example: tuple[list[int], list[int]]) -> int:
    prompt, response = example
    return len(prompt) + len(response)


def _padded(examples: list[tuple[list[int], list[int]]]) -> Tensors:
    """Right-padded input ids and labels; only responses are learnt."""
    width = max(map(_length, examples))
    input_ids_BT = torch.full((len(examples), width), pad_token_id)
    labels_BT = torch.full((len(examples), width), ignored_label)
    for index, (prompt, response) in enumerate(examples):
        end = len(prompt) + len(response)
        input_ids_BT[index, :end] = torch.tensor(prompt + response)
        labels_BT[index, len(prompt) : end] = torch.tensor(response)
    return input_ids_BT, labels_BT
