"""Reading shards: every byte of one is compared with what its manifest says, once, on several threads.

The header must be the one that the manifest's tensors make, and each piece of 16 MiB must have its leaf: nothing in a
shard is left that could be otherwise.
"""

from __future__ import annotations

import hashlib
from collections import deque
from functools import partial
from itertools import cycle
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import IO, TYPE_CHECKING, NamedTuple

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.identity import leaf_bytes, leaf_of
from rollog.kernel.versions.threads import num_threads, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from rollog.kernel.versions.manifest import Shard

_worth_a_thread_bytes = 1 << 20


class _Asked(NamedTuple):
    """A leaf that is being computed."""

    tensor: str
    expected: str
    found: Future[str]


def check_shard(
    source: IO[bytes],
    shard: Shard,
    target: IO[bytes] | None = None,
    *,
    onto: memoryview | None = None,
    with_sha256: bool = False,
) -> None:
    """Read a shard through, into `target`, or `onto` memory of its size, which holds anything after an error.

    `with_sha256` compares the sha256 of the file as well, which says nothing more of its tensors. Raises WeightsError
    where it is not the manifest's.
    """
    digest = hashlib.sha256()
    most_asked = num_threads()
    asked: deque[_Asked] = deque()
    place = _Turns(shard, most_asked + 1).place if onto is None else partial(_part_of, onto)
    with threads("leaves") as pool:
        for tensor, expected, piece in _pieces(source, shard, place):
            if target is not None:
                target.write(piece)
            if with_sha256:
                digest.update(piece)
            if expected is None:
                continue
            if len(piece) < _worth_a_thread_bytes:
                _compare(shard, tensor, expected, leaf_of(piece))
                continue
            asked.append(_Asked(tensor, expected, pool.submit(leaf_of, piece)))
            if len(asked) > most_asked:
                _compare_asked(shard, asked.popleft())
        for each in asked:
            _compare_asked(shard, each)
    if with_sha256 and digest.hexdigest() != shard.sha256:
        raise WeightsError(
            f"{shard.name} has the tensors of its manifest and sha256 {digest.hexdigest()}; the manifest names "
            f"{shard.sha256} and is wrong about the file"
        )


class _Turns:
    """Memory for so many large pieces, used in turn: to take new memory for each makes reading three times slower.

    It begins on a page: some processors copy from a page of a file to an address 16 bytes into one, as of malloc, four
    times slower.
    """

    def __init__(self, shard: Shard, number: int) -> None:
        largest = min(leaf_bytes, max((tensor.spec.num_bytes for tensor in shard.tensors), default=0))
        is_needed = largest >= _worth_a_thread_bytes
        private = MAP_PRIVATE | MAP_ANONYMOUS
        self._buffers = cycle(
            [memoryview(mmap(-1, largest, private)) for _ in range(number)] if is_needed else ()
        )

    def place(self, begin: int, num_bytes: int) -> memoryview:
        """Where a piece of a tensor goes; a large one stays there until `number` more of them have come."""
        is_header = begin == 0
        if is_header or num_bytes < _worth_a_thread_bytes:
            return memoryview(bytearray(num_bytes))
        return next(self._buffers)[:num_bytes]


def _part_of(memory: memoryview, begin: int, num_bytes: int) -> memoryview:
    return memory[begin : begin + num_bytes]


def _pieces(
    source: IO[bytes], shard: Shard, place: Callable[[int, int], memoryview]
) -> Iterator[tuple[str, str | None, memoryview]]:
    """The header, then pieces with the names of their tensors and the leaves that they should have.

    `place` says where what begins at a byte of the shard, and has so many, goes.
    """
    position = len(shard.header)
    header = _filled(place(0, position), source, shard)
    if header != shard.header:
        raise WeightsError(
            f"{shard.name} does not begin with the tensors of its manifest; the file was altered and is not used"
        )
    yield "", None, header
    for tensor in shard.tensors:
        end = position + tensor.spec.num_bytes
        for leaf in tensor.leaves:
            piece = place(position, min(leaf_bytes, end - position))
            yield tensor.spec.name, leaf, _filled(piece, source, shard)
            position += len(piece)
    if source.read(1):
        raise WeightsError(
            f"{shard.name} has more than {shard.num_bytes} bytes; the file was overwritten and is not used"
        )


def _filled(piece: memoryview, source: IO[bytes], shard: Shard) -> memoryview:
    left = piece
    while left:
        num_bytes = _read_into(left, source)
        if not num_bytes:
            raise WeightsError(
                f"{shard.name} has fewer bytes than {shard.num_bytes}; the file was cut and is not used"
            )
        left = left[num_bytes:]
    return piece


def _read_into(piece: memoryview, source: IO[bytes]) -> int:
    if (read := getattr(source, "readinto", None)) is not None:
        return int(read(piece))
    # Files of some filesystems, such as those of Arrow, cannot.
    data = source.read(len(piece))
    piece[: len(data)] = data
    return len(data)


def _compare_asked(shard: Shard, asked: _Asked) -> None:
    _compare(shard, asked.tensor, asked.expected, asked.found.result())


def _compare(shard: Shard, tensor: str, expected: str, found: str) -> None:
    if found != expected:
        raise WeightsError(
            f"tensor {tensor!r:.80} of {shard.name} has a leaf {found[:16]} instead of {expected[:16]}; the file was "
            "altered and is not used"
        )
