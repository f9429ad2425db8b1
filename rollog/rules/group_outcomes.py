"""How the groups of a run ended, in four bytes each: a run may close millions of them.

Pure. Few different endings exist (an outcome and which replicas were trained), so a group needs only the number of its
ending.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Self

from schemas import Disposition

Ending = tuple[Disposition, int]
"""The outcome of a group, and the replicas that were trained as the bits of a number."""

_block_size = 4096
_bytes_per_block = _block_size * array("I").itemsize


class GroupOutcomes(Collection[int]):
    """The closed groups, and the replicas that were trained of any group. As a collection it holds the closed ones.

    Example: replicas 0 and 2 of group 7 are trained, then it is closed as trained. Its ending is (trained, 0b101); so
    is that of every other group of which these were trained. In the block of groups 0 to 4095 the place of group 7
    holds the number of that ending, counted from 1; the place of a group that is not closed holds 0.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self._endings: list[Ending] = []
        self._numbers: dict[Ending, int] = {}
        self._blocks: dict[int, array[int]] = {}
        self._trained_so_far: dict[int, int] = {}
        self._num_by_outcome: Counter[Disposition] = Counter()

    def __contains__(self, group: object) -> bool:
        return isinstance(group, int) and self._number(group) != 0

    def __len__(self) -> int:
        return self._num_by_outcome.total()

    def __iter__(self) -> Iterator[int]:
        """The closed groups, in order."""
        for index in sorted(self._blocks):
            for place, number in enumerate(self._blocks[index]):
                if number:
                    yield index * _block_size + place

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupOutcomes):
            return NotImplemented
        return (
            self._trained_so_far == other._trained_so_far
            and self._num_by_outcome == other._num_by_outcome
            and all(self.ending(group) == other.ending(group) for group in self)
        )

    def __repr__(self) -> str:
        return f"GroupOutcomes({self.num_by_outcome}, {len(self._trained_so_far)} trained and not closed)"

    @property
    def num_by_outcome(self) -> dict[Disposition, int]:
        """How many groups were closed with each outcome."""
        return dict(self._num_by_outcome)

    def latest(self, count: int) -> list[int]:
        """The closed groups with the highest ids, highest first: `count` of them, or all."""
        found: list[int] = []
        for index in sorted(self._blocks, reverse=True):
            block = self._blocks[index]
            for place in range(_block_size - 1, -1, -1):
                if len(found) == count:
                    return found
                if block[place]:
                    found.append(index * _block_size + place)
        return found

    def ending(self, group: int) -> Ending | None:
        """How a group ended; None while it is not closed."""
        number = self._number(group)
        return self._endings[number - 1] if number else None

    def is_trained(self, group: int, replica: int) -> bool:
        """Whether this replica of the group was trained."""
        return replica >= 0 and bool(self._trained(group) >> replica & 1)

    def train(self, group: int, replica: int) -> None:
        """This replica, 0 or higher, of the group was trained."""
        trained = self._trained(group) | 1 << replica
        ending = self.ending(group)
        if ending is None:
            self._trained_so_far[group] = trained
        else:
            self._set(group, (ending[0], trained))

    def close(self, group: int, outcome: Disposition) -> None:
        """The group, not closed before, is closed."""
        self._set(group, (outcome, self._trained_so_far.pop(group, 0)))
        self._num_by_outcome[outcome] += 1

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        indices = sorted(self._blocks)
        codes = b"".join(self._blocks[index].tobytes() for index in indices)
        return {
            "endings": [[outcome.value, trained] for outcome, trained in self._endings],
            "num_by_outcome": {outcome.value: num for outcome, num in self._num_by_outcome.items()},
            "trained_so_far": [[group, trained] for group, trained in self._trained_so_far.items()],
            "blocks": indices,
            "codes": base64.b64encode(zlib.compress(codes, 1)).decode("ascii"),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """What `to_plain` gave. Raises ValueError, TypeError, KeyError or zlib.error for anything else."""
        read = cls()
        for outcome, trained in plain["endings"]:
            read._number_of((Disposition(outcome), int(trained)))
        indices = [int(index) for index in plain["blocks"]]
        size = len(indices) * _bytes_per_block
        codes = zlib.decompressobj().decompress(base64.b64decode(plain["codes"], validate=True), size + 1)
        if len(codes) != size:
            raise ValueError(f"the codes of {len(indices)} blocks have {len(codes)} bytes")
        for number, index in enumerate(indices):
            block = array("I")
            block.frombytes(codes[number * _bytes_per_block : (number + 1) * _bytes_per_block])
            if max(block) > len(read._endings):
                raise ValueError(f"block {index} names an ending that is not there")
            read._blocks[index] = block
        read._trained_so_far = {int(group): int(trained) for group, trained in plain["trained_so_far"]}
        read._num_by_outcome = Counter(
            {Disposition(outcome): int(num) for outcome, num in plain["num_by_outcome"].items()}
        )
        return read

    def _trained(self, group: int) -> int:
        ending = self.ending(group)
        return self._trained_so_far.get(group, 0) if ending is None else ending[1]

    def _number(self, group: int) -> int:
        block = self._blocks.get(group // _block_size)
        return 0 if block is None else block[group % _block_size]

    def _set(self, group: int, ending: Ending) -> None:
        index = group // _block_size
        if index not in self._blocks:
            self._blocks[index] = array("I", bytes(_bytes_per_block))
        self._blocks[index][group % _block_size] = self._number_of(ending)

    def _number_of(self, ending: Ending) -> int:
        if ending not in self._numbers:
            self._endings.append(ending)
            self._numbers[ending] = len(self._endings)
        return self._numbers[ending]
