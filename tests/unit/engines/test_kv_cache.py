"""How much memory attention takes, by a model's shape."""

from __future__ import annotations

from typing import Any

import pytest

from producers.engines.kv_cache import bytes_per_token, kv_cache
from rollog.kernel.machine import free_memory_bytes, memory_bytes, num_processors

qwen_half_a_billion = {
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_size": 896,
}


def a_cache(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "dtype": "float32",
        "max_context_tokens": 512,
        "capacity": 32,
        "wanted_bytes": None,
        "free_bytes": None,
    }
    return kv_cache(qwen_half_a_billion, **(values | changes))


def test_a_token_takes_two_vectors_per_layer_and_key_value_head() -> None:
    assert bytes_per_token(qwen_half_a_billion, "float32") == 2 * 24 * 2 * 64 * 4
    assert bytes_per_token(qwen_half_a_billion, "bfloat16") == 2 * 24 * 2 * 64 * 2
    assert bytes_per_token({"model_type": "other"}, "float32") is None


def test_left_out_every_sequence_of_the_capacity_fits() -> None:
    assert a_cache().num_sequences == 32
    assert not a_cache().is_short
    # 129 tokens take two blocks, and two more are spare, which hold no sequence.
    assert a_cache(max_context_tokens=129).num_sequences == 32
    assert a_cache(max_context_tokens=256, capacity=4).num_sequences == 4


def test_spare_blocks_hold_no_sequence() -> None:
    one_less = a_cache(max_context_tokens=256, capacity=4).num_bytes - 1
    cache = a_cache(max_context_tokens=256, capacity=4, wanted_bytes=one_less)
    assert (cache.num_sequences, cache.is_short) == (3, True)
    assert a_cache(wanted_bytes=1 << 20).num_sequences == 0


def test_at_most_a_quarter_of_the_free_memory_is_taken_but_one_sequence_fits() -> None:
    cache = a_cache(free_bytes=400 << 20)
    assert cache.num_bytes == 100 << 20
    assert cache.is_short
    assert str(cache) == "KV cache of 100 MiB: 7 sequences of the full context fit, capacity is 32"
    assert a_cache(free_bytes=1).num_sequences == 1


def test_what_the_settings_say_is_taken() -> None:
    cache = a_cache(wanted_bytes=64 << 20)
    assert (cache.num_bytes, cache.num_sequences) == (64 << 20, 4)


@pytest.mark.parametrize(
    ("free_bytes", "num_bytes"),
    [(None, 1 << 30), (8 << 30, 1 << 30), (2 << 30, 512 << 20), (1, 16 << 20)],
)
def test_a_model_of_unknown_shape_gets_a_gibibyte_or_a_quarter_of_the_free_memory(
    free_bytes: int | None, num_bytes: int
) -> None:
    cache = kv_cache(
        {}, dtype="float32", max_context_tokens=8, capacity=2, wanted_bytes=None, free_bytes=free_bytes
    )
    assert (cache.num_bytes, cache.is_short) == (num_bytes, False)
    assert str(cache) == f"KV cache of {num_bytes >> 20:,} MiB"


@pytest.mark.skipif(memory_bytes() is None, reason="the system does not tell")
def test_this_machine_has_processors_and_memory() -> None:
    total, free = memory_bytes(), free_memory_bytes()
    assert num_processors() >= 1
    assert total is not None
    assert free is not None
    assert 0 < free <= total
