"""The order of work: versions one after another, each loaded once, with few steps of a run in memory.

Beside the versions that pieces name their neighbours are visited, too, so that each piece can be compared with the
weights before and after its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from consumers.verification.pieces import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Pieces as they are read; those in later parts name no version below `complete_below` (None: there are none)."""

    pieces: Sequence[Piece]
    complete_below: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One version: the pieces that name it, and those at hand that name the next one."""

    version: int
    pieces: Sequence[Piece]
    ahead: Sequence[Piece]


def turns_by_version(parts: Iterable[Part]) -> Iterator[Turn]:
    """Every piece in the turn of its version; versions ascend. A part that comes too late begins a second round."""
    waiting = _Waiting()
    for part in parts:
        for piece in part.pieces:
            waiting.pieces[piece.version].append(piece)
        if part.complete_below is not None:
            # The pieces ahead of a version are to be there, too, when it has its turn.
            yield from waiting.up_to(part.complete_below - 2)
    yield from waiting.up_to(None)
    while waiting.pieces:
        waiting.begin_again()
        yield from waiting.up_to(None)


class _Waiting:
    """Pieces by version, and how far the turns have come."""

    def __init__(self) -> None:
        self.pieces: defaultdict[int, list[Piece]] = defaultdict(list)
        self.begin_again()

    def begin_again(self) -> None:
        self._done_up_to = -1
        self._named_last: int | None = None

    def up_to(self, last: int | None) -> Iterator[Turn]:
        while (version := self._next()) is not None and (last is None or version <= last):
            self._done_up_to = version
            pieces = self.pieces.pop(version, [])
            if pieces:
                self._named_last = version
            yield Turn(version=version, pieces=pieces, ahead=self.pieces.get(version + 1, ()))

    def _next(self) -> int | None:
        wanted = {version + by for version in self.pieces for by in (-1, 0, 1)}
        if self._named_last is not None:
            wanted.add(self._named_last + 1)
        return min((version for version in wanted if version > self._done_up_to), default=None)
