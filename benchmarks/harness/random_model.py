"""A language model of any size with random weights, its tokenizer and prompts: made offline, for measuring speed.

The tokenizer has one word per token (`w0`, `w1`, ...), so that every token the model draws is a word. A random model
hardly ever ends a response: responses have the most tokens that are allowed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Qwen2ForCausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a Qwen2 model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    has_tied_embeddings: bool = True


shapes = {
    "tiny": ModelShape(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=2,
        num_key_value_heads=1,
    ),
    # 98 million parameters, a quarter of them in the vocabulary.
    "0.1b": ModelShape(
        vocab_size=32_768,
        hidden_size=768,
        intermediate_size=2048,
        num_layers=12,
        num_heads=12,
        num_key_value_heads=2,
    ),
    # Of Qwen2.5-0.5B: 494 million parameters.
    "0.5b": ModelShape(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_key_value_heads=2,
    ),
    # Of Qwen2.5-1.5B: 1.54 billion parameters.
    "1.5b": ModelShape(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_layers=28,
        num_heads=12,
        num_key_value_heads=2,
    ),
    # Of Qwen2.5-7B: 7.62 billion parameters.
    "7b": ModelShape(
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_layers=28,
        num_heads=28,
        num_key_value_heads=4,
        has_tied_embeddings=False,
    ),
}


def words(shape: ModelShape) -> tuple[str, ...]:
    """The vocabulary: padding, end and the unknown word, then numbered words."""
    from rollog.demo.word_models import special_tokens  # noqa: PLC0415  # needs torch

    return (*special_tokens, *(f"w{index}" for index in range(len(special_tokens), shape.vocab_size)))


def write_random_model(
    directory: Path, shape: ModelShape, *, dtype: str, max_context_tokens: int, seed: int
) -> int:
    """Write model and tokenizer into an existing directory; returns the number of parameters."""
    from rollog.demo.word_models import save_model, save_word_tokenizer  # noqa: PLC0415  # needs torch
    from trainer.model.policy import dtypes  # noqa: PLC0415  # the same

    model = random_model(shape, max_context_tokens, seed)
    model.to(dtype=dtypes[dtype])  # type: ignore[call-arg]
    save_model(model, directory)
    save_word_tokenizer(directory, words(shape), max_context_tokens)
    return sum(parameter.numel() for parameter in model.parameters())


def random_model(shape: ModelShape, max_context_tokens: int, seed: int) -> Qwen2ForCausalLM:
    """A model with random weights in float32; the global random state is left as it was."""
    import torch  # noqa: PLC0415  # the prompts and the reward need none of it
    from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: PLC0415

    from rollog.demo.word_models import eos_token_id, pad_token_id  # noqa: PLC0415

    config = Qwen2Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        max_position_embeddings=max_context_tokens,
        tie_word_embeddings=shape.has_tied_embeddings,
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]


def write_prompts(path: Path, shape: ModelShape, *, num_prompts: int, num_words: int, seed: int) -> None:
    """Write JSONL with `id` and `prompt`: words drawn at random."""
    draw = random.Random(seed)  # a workload, no secret
    known = [word for word in words(shape) if word.startswith("w")]
    rows = (
        {"id": str(number), "prompt": " ".join(draw.choices(known, k=num_words))}
        for number in range(num_prompts)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def share_of_even_words(prompt: object, response: str, **fields: object) -> float:
    """A reward that differs between random responses: the share of words with an even number."""
    del prompt, fields
    numbers = [word[1:] for word in response.split() if word.startswith("w")]
    return sum(number[-1:] in {"0", "2", "4", "6", "8"} for number in numbers) / max(len(numbers), 1)
