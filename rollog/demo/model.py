"""The demo's policy: a Qwen2 language model of 0.4 million parameters over a vocabulary of whole words.

Both parts are ordinary Hugging Face ones: the model's directory loads with `AutoModelForCausalLM`, its tokenizer
with `PreTrainedTokenizerFast`, and vLLM serves it. `AutoTokenizer` must not be used: it overrules the class named in
tokenizer_config.json for every model of type qwen2 and splits words into pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rollog.demo.word_models import eos_token_id, pad_token_id, save_word_tokenizer
from rollog.demo.word_task import WordTask, countdown_task

if TYPE_CHECKING:
    from pathlib import Path

vocabulary = countdown_task.words
max_context_tokens = countdown_task.max_context_tokens


def save_tokenizer(directory: Path, task: WordTask = countdown_task) -> None:
    """Write the tokenizer's two files."""
    save_word_tokenizer(directory, task.words, task.max_context_tokens)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model directory."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def encode_words(text: str) -> list[int]:
    """Token ids of a text of countdown's words, without any tokenizer object."""
    return countdown_task.encode(text)


def model_config(task: WordTask = countdown_task) -> Qwen2Config:
    """Two layers of width 128, tied embeddings."""
    return Qwen2Config(
        vocab_size=len(task.words),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=task.max_context_tokens,
        initializer_range=0.04,
        tie_word_embeddings=True,
        use_sliding_window=False,
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )


def new_model(seed: int, task: WordTask = countdown_task) -> Qwen2ForCausalLM:
    """The model with random weights that depend on the seed alone; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(model_config(task))  # type: ignore[no-untyped-call]
