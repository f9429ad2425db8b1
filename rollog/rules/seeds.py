"""Seeds that follow from what they are for, in every process alike."""

from __future__ import annotations

from hashlib import sha256

_num_bits = 31


def derived_seed(*parts: object) -> int:
    """A sampling seed of 31 bits: of the sha256 of `parts`, joined by slashes."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(sha256(text.encode()).digest()[:4], "little") >> (32 - _num_bits)
