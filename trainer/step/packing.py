"""Packing: several samples in one row of a forward pass, instead of a row each that is padded to the longest.

    without:  [aaaaaaaa]      with:  [aaaaaaaa]
              [bbbbb...]             [bbbbbccc]
              [ccc.....]

Rows are as wide as the longest sample, so attention, whose cost grows with the square of the width, costs no more per
row. What is left over at the end of a row is padding. Pure, and the same on every rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def pack_rows(lengths: Sequence[int], width: int, *, max_rows: int | None = None) -> list[list[int]]:
    """Which samples share a row: every sample goes, in the order given, into the first row that has room for it.

    Args:
        lengths: tokens of each sample, best longest first; one over `width` has a row to itself.
        width: tokens of a row.
        max_rows: what finds no room in so many rows is left out.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for position, length in enumerate(lengths):
        row = next((index for index, left in enumerate(room) if left >= length), None)
        if row is not None:
            rows[row].append(position)
            room[row] -= length
        elif max_rows is None or len(rows) < max_rows:
            rows.append([position])
            room.append(width - length)
    return rows


def num_padded_tokens(lengths: Sequence[int], *, packing: bool) -> int:
    """Tokens of the forward pass over samples of these lengths, padding included."""
    width = max(lengths, default=0)
    return width * (len(pack_rows(lengths, width)) if packing else len(lengths))
