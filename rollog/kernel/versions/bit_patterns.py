"""Tensors as unsigned integers: what a patch compares and writes, whatever the numbers mean.

Two tensors are equal when all their bits are. -0.0 and 0.0 differ, a NaN equals itself, its payload included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = bytes | bytearray | memoryview

BitPatterns = npt.NDArray[np.unsignedinteger[Any]]
"""Elements of a tensor in row-major order, one dimension, as uint8, uint16, uint32 or uint64."""

Positions = npt.NDArray[np.intp]
"""Places of elements in a tensor, rising."""

item_sizes = (1, 2, 4, 8)
"""Bytes of an element that a patch can have; an element of 16 bytes counts as two of 8."""


def bit_patterns(buffer: Buffer, item_size: int) -> BitPatterns:
    """The elements in `buffer`, little-endian and `item_size` bytes each, without a copy.

    Raises ValueError for other sizes, and for a buffer that ends inside an element.
    """
    if item_size not in item_sizes:
        raise ValueError(f"elements of {item_size} bytes; a patch knows those of 1, 2, 4 and 8")
    return np.frombuffer(buffer, dtype=f"<u{item_size}")


def _check_tensor(tensor: BitPatterns) -> None:
    """Raise ValueError unless these are the bit patterns of a tensor."""
    if tensor.ndim != 1 or tensor.dtype not in (np.dtype(f"<u{size}") for size in item_sizes):
        raise ValueError(
            f"a tensor comes as one dimension of little-endian unsigned integers, not as {tensor.ndim} of "
            f"{tensor.dtype.str}"
        )


def check_pair(base: BitPatterns, new: BitPatterns) -> None:
    """Raise ValueError unless both can be the same tensor in two versions."""
    _check_tensor(base)
    _check_tensor(new)
    if (base.dtype, base.size) != (new.dtype, new.size):
        raise ValueError(
            f"base and new tensor differ: {base.size} elements of {base.dtype}, {new.size} of {new.dtype}"
        )
