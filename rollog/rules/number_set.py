"""A set of numbers in about two bits each where they stand close together, as numbers that count something do."""

from __future__ import annotations

_block_bits = 1024


class NumberSet:
    """Numbers from 0 on. One that stands alone takes a block for itself, some 250 bytes.

    Example: after 3 and 1030 were added, block 0 is 0b1000 and block 1 is 0b1000000.
    """

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        block, bit = divmod(number, _block_bits)
        return bool(self._blocks.get(block, 0) >> bit & 1)

    def add(self, number: int) -> None:
        """Add a number; that it is there already does not matter."""
        block, bit = divmod(number, _block_bits)
        self._blocks[block] = self._blocks.get(block, 0) | 1 << bit
