"""Seeds for packages whose own are shorter than an episode's.

Held-out seeds differ from those of training in their high bits alone, so that a remainder would make them equal.
"""

from __future__ import annotations

from hashlib import sha256

_digest_bits = 64


def folded_seed(seed: int, num_bits: int) -> int:
    """A seed of `num_bits` bits, at most 64: of the sha256 of the decimal text, in which every digit counts."""
    digest = sha256(str(seed).encode()).digest()[: _digest_bits // 8]
    return int.from_bytes(digest, "little") >> (_digest_bits - num_bits)
