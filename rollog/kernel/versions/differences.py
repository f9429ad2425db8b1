"""New values as differences of bit patterns: small numbers, since most changed weights move to a neighbouring value.

For elements of `bits` bits, all arithmetic modulo 2**bits:

    difference d = new - base           zigzag z = (d << 1) ^ (d's highest bit in all places)

so that +1, -1, +2, -2 become 2, 1, 4, 3 and the higher bytes are mostly 0. The bytes of all z come in planes: first the
lowest byte of each, then the next byte of each. zstd packs planes closer than whole numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rollog.kernel.versions.bit_patterns import BitPatterns
    from schemas.arrays import UInt8Array


def packed_differences(base: BitPatterns, new: BitPatterns) -> UInt8Array:
    """The bytes of the differences between equally many old and new values."""
    item_size = base.dtype.itemsize
    folded = new - base
    sign = folded >> (8 * item_size - 1)
    np.negative(sign, out=sign)
    folded <<= 1
    folded ^= sign
    planes: UInt8Array = folded.view(np.uint8).reshape(-1, item_size).T.ravel()
    return planes


def unpacked_differences(packed: UInt8Array, item_size: int) -> BitPatterns:
    """The differences in such bytes; new = base + difference."""
    planes = packed.reshape(item_size, -1)
    if item_size > 1 and not planes[1:].any():  # as after most steps; it takes a fifth of the time
        unfolded = np.empty(planes.shape[1], dtype=f"<u{item_size}")
        unfolded[:] = _unfold(planes[0].copy()).view(np.int8)
        return unfolded
    return _unfold(np.array(planes.T, order="C").view(f"<u{item_size}").ravel())


def _unfold(zigzags: BitPatterns) -> BitPatterns:
    """What was folded, in place."""
    signs = zigzags & 1
    np.negative(signs, out=signs)
    zigzags >>= 1
    zigzags ^= signs
    return zigzags
