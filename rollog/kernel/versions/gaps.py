"""Rising positions as bytes: one byte for each, the number of elements passed over since the one before.

A byte below 255 passes over so many elements and takes the next one. 255 is the escape: it passes over 255 elements and
takes none. Positions 0, 3, 4, 600 are

    0  2  0  255 255 85          since 600 - 4 - 1 = 595 = 2 * 255 + 85

So every stream of bytes stands for rising positions, and one for n elements has at most n bytes. The last byte is no
escape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rollog.kernel.versions.bit_patterns import Positions
    from schemas.arrays import UInt8Array

escape = 255


def packed_gaps(positions: Positions) -> UInt8Array:
    """The bytes of rising positions, of which there is at least one."""
    gaps = positions.copy()
    gaps[1:] -= positions[:-1] + 1
    # Division takes eight times as long as all the rest, and few gaps are that long.
    long = np.flatnonzero(gaps >= escape)
    if not long.size:
        return gaps.astype(np.uint8)
    escapes, gaps[long] = np.divmod(gaps[long], escape)
    return np.insert(gaps.astype(np.uint8), np.repeat(long, escapes), np.uint8(escape))


def unpacked_positions(packed: UInt8Array) -> Positions:
    """The positions of such bytes; their number and range are for the caller to check."""
    takes = packed != escape
    # What a byte passes over, and what it takes: 254 + 1 or 255 + 0 at most.
    passed = packed + takes.view(np.uint8)
    passed[:1] -= 1
    positions: Positions = np.cumsum(passed, dtype=np.intp)[takes]
    return positions
