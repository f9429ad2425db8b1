"""How much memory attention keeps of the tokens it has seen, and how many sequences fit into it. Pure.

A token takes two vectors, key and value, in each layer, for each key-value head:

    2 x layers x key-value heads x head size x bytes of the type
    Qwen2.5-0.5B in float32:  2 x 24 x 2 x 64 x 4 = 24,576 bytes; 512 tokens: 12.6 MB; 32 such sequences: 403 MB

Source: the configuration of the model, as `transformers` names its entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_bytes_of_type = {"float32": 4, "bfloat16": 2}
_block_tokens = 128
"""vLLM gives memory out in blocks of so many tokens on a CPU (16 on a GPU)."""
_spare_blocks = 2
"""Which hold no sequence."""
_least_bytes = 16 << 20
_unknown_shape_bytes = 1 << 30
_share_of_memory = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Memory for attention state. `num_sequences` of the full context fit, where the model's shape is known."""

    num_bytes: int
    capacity: int
    num_sequences: int | None

    @property
    def is_short(self) -> bool:
        """Whether fewer sequences fit than are to be generated at once."""
        return self.num_sequences is not None and self.num_sequences < self.capacity

    def __str__(self) -> str:
        size = f"KV cache of {self.num_bytes / 2**20:,.0f} MiB"
        if self.num_sequences is None:
            return size
        return f"{size}: {self.num_sequences} sequences of the full context fit, capacity is {self.capacity}"


def kv_cache(
    config: Mapping[str, Any],
    *,
    dtype: str,
    max_context_tokens: int,
    capacity: int,
    wanted_bytes: int | None,
    free_bytes: int | None,
) -> KvCache:
    """The attention state of an engine on a CPU.

    `config` is the model's config.json, `wanted_bytes` is what the settings say. Left out, it is room for `capacity`
    sequences of the full context (for a model of unknown shape a GiB), but at most a quarter of `free_bytes`, the
    memory that is free on this machine, and room for one sequence (16 MiB) in any case.
    """
    per_token = bytes_per_token(config, dtype)
    if per_token is None:
        num_bytes = wanted_bytes or _bounded(_unknown_shape_bytes, free_bytes, least_bytes=_least_bytes)
        return KvCache(num_bytes=num_bytes, capacity=capacity, num_sequences=None)
    num_blocks = -(-max_context_tokens // _block_tokens)
    per_sequence = per_token * _block_tokens * num_blocks
    spare = per_token * _block_tokens * _spare_blocks
    num_bytes = wanted_bytes or _bounded(
        max(_least_bytes, per_sequence * capacity + spare), free_bytes, least_bytes=per_sequence + spare
    )
    num_sequences = max(0, num_bytes - spare) // per_sequence
    return KvCache(num_bytes=num_bytes, capacity=capacity, num_sequences=num_sequences)


def _bounded(num_bytes: int, free_bytes: int | None, *, least_bytes: int) -> int:
    """At most a share of the memory that is free, where that is known, but `least_bytes` in any case."""
    if free_bytes is None:
        return num_bytes
    return min(num_bytes, max(int(free_bytes * _share_of_memory), least_bytes))


def bytes_per_token(config: Mapping[str, Any], dtype: str) -> int | None:
    """Bytes of attention state per token; None where the configuration does not say it in the usual words."""
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    size = head_size(config)
    if not (isinstance(layers, int) and isinstance(kv_heads, int) and size):
        return None
    return 2 * layers * kv_heads * size * _bytes_of_type[dtype]


def head_size(config: Mapping[str, Any]) -> int | None:
    """Width of one attention head; None where the configuration does not say it in the usual words."""
    if isinstance(config.get("head_dim"), int):
        return int(config["head_dim"])
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
