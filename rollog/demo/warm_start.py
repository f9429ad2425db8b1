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

from rollog.demo.model import new_model
from rollog.demo.word_models import pad_token_id
from rollog.demo.word_task import WordTask, countdown_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import Qwen2ForCausalLM

    from rollog.demo.settings import WarmStartSettings
    from rollog.demo.word_task import Example

ignored_label = -100

Tensors = tuple[Tensor, Tensor]


def train(
    seed: int,
    settings: WarmStartSettings,
    on_progress: Callable[[float], None] | None = None,
    task: WordTask = countdown_task,
) -> Qwen2ForCausalLM:
    """Train a new model; `on_progress` is told the finished fraction after every step."""
    with single_threaded():
        model = new_model(seed, task)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, settings))
        rng = random.Random(seed)  # noqa: S311  reproducible on purpose
        for step, micro_batches in enumerate(_batches(task, rng, settings), start=1):
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


def _batches(task: WordTask, rng: random.Random, settings: WarmStartSettings) -> Iterator[list[Tensors]]:
    """Per step the micro-batches that make it up, cut from examples in order of length to save padding."""
    for step in range(settings.num_steps):
        practises = step < settings.practice_fraction * settings.num_steps
        examples = sorted(task.examples(rng, settings, practises), key=_length)
        size = -(-settings.batch_size // settings.num_micro_batches)
        yield [_padded(examples[start : start + size]) for start in range(0, len(examples), size)]


def _length(example: Example) -> int:
    return len(example[0])


def _padded(examples: list[Example]) -> Tensors:
    """Right-padded input ids and labels; only the policy's own words are learnt."""
    width = max(map(_length, examples))
    input_ids_BT = torch.full((len(examples), width), pad_token_id)
    labels_BT = torch.full((len(examples), width), ignored_label)
    for index, (token_ids, is_learnt) in enumerate(examples):
        tokens, learnt = torch.tensor(token_ids), torch.tensor(is_learnt)
        input_ids_BT[index, : len(token_ids)] = tokens
        labels_BT[index, : len(token_ids)] = tokens.where(learnt, ignored_label)
    return input_ids_BT, labels_BT
