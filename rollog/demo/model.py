"""The demo's policy: a Qwen2 language model of 0.4 million parameters over a vocabulary of whole words.

Both parts are ordinary Hugging Face ones: the model's directory loads with `AutoModelForCausalLM`, its tokenizer
with `PreTrainedTokenizerFast`, and vLLM serves it. `AutoTokenizer` must not be used: it overrules the class named in
tokenizer_config.json for every model of type qwen2 and splits words into pieces.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rollog.demo.countdown import again, largest_value, marks, operators

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pad_token, eos_token, unknown_token = "<pad>", "<eos>", "<unk>"
vocabulary = (
    pad_token,
    eos_token,
    unknown_token,
    *operators,
    ":",
    "=",
    again,
    *marks,
    *(str(value) for value in range(largest_value + 1)),
)
pad_token_id, eos_token_id, unknown_token_id = range(3)
max_context_tokens = 64


def save_tokenizer(
    directory: Path, known: Sequence[str] = vocabulary, max_tokens: int = max_context_tokens
) -> None:
    """Write tokenizer.json and tokenizer_config.json; the latter names the class to load it with."""
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(known)}, unk_token=unknown_token))
    words.pre_tokenizer = WhitespaceSplit()
    words.add_special_tokens([pad_token, eos_token, unknown_token])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad_token,
        "eos_token": eos_token,
        "unk_token": unknown_token,
        "model_max_length": max_tokens,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    words.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def save_model(model: Qwen2ForCausalLM, directory: Path) -> None:
    """Write weights and configuration; the output layer is the embedding, so it is written once."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    weights = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    path = directory / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model directory."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def encode_words(text: str) -> list[int]:
    """Token ids of a text of known words, without any tokenizer object."""
    return [_index[word] for word in text.split()]


def model_config() -> Qwen2Config:
    """Two layers of width 128, tied embeddings."""
    return Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_context_tokens,
        initializer_range=0.04,
        tie_word_embeddings=True,
        use_sliding_window=False,
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )


def new_model(seed: int) -> Qwen2ForCausalLM:
    """The model with random weights that depend on the seed alone; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(model_config())  # type: ignore[no-untyped-call]


_index = {word: index for index, word in enumerate(vocabulary)}
