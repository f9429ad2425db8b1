"""A model of random weights in place of one from a hub: same architecture, byte-level tokenizer, chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

special_tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
chat_template = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_stand_in(directory: Path) -> Path:
    """Write a Qwen2 model with one layer and heads of size 64, which vLLM computes on a CPU, and its tokenizer."""
    alphabet = sorted(ByteLevel.alphabet())
    numbered = {token: number for number, token in enumerate([*special_tokens, *alphabet])}
    bytes_alone = Tokenizer(BPE(vocab=numbered, merges=[]))
    bytes_alone.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = ByteLevelDecoder()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bytes_alone,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(special_tokens[1:]),
        chat_template=chat_template,
    )
    tokenizer.save_pretrained(directory)
    config = Qwen2Config(
        vocab_size=len(numbered),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(directory)  # type: ignore[no-untyped-call]
    return directory
