"""Files of a Qwen2 language model whose tokens are whole words: what small models made offline are written as.

Both parts are ordinary Hugging Face ones: the directory loads with `AutoModelForCausalLM`, its tokenizer with
`PreTrainedTokenizerFast`, and vLLM serves it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import Qwen2ForCausalLM

special_tokens = pad_token, eos_token, unknown_token = "<pad>", "<eos>", "<unk>"
pad_token_id, eos_token_id, unknown_token_id = range(3)


def save_word_tokenizer(directory: Path, known: Sequence[str], max_tokens: int) -> None:
    """Write tokenizer.json and tokenizer_config.json; the latter names the class to load it with.

    `known` are the words by their ids, `special_tokens` first.
    """
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
