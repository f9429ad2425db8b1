"""Reading shards: every byte of one is compared with what its manifest says, once, on several threads.

The header must be the one that the manifest's tensors make, and each piece of 16 MiB must have its leaf: nothing in a
shard is left that could be otherwise.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import IO, TYPE_CHECKING, NamedTuple

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.identity import leaf_bytes, leaf_of
from rollog.kernel.versions.threads import num_threads, threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from rollog.kernel.versions.manifest import Shard

_worth_a_thread_bytes = 1 << 20


class _Asked(NamedTuple):
    """A leaf that is being computed."""

    tensor: str
    expected: str
    found: Future[str]


def check_shard(
    source: IO[bytes], shard: Shard, target: IO[bytes] | None = None, *, with_sha256: bool = False
) -> None:
    """Read a shard through, into `target` if there is one. Raises WeightsError where it is not the manifest's.

    `with_sha256` compares the sha256 of the file as well, which says nothing more of its tensors.
    """
    digest = hashlib.sha256()
    most_asked = num_threads()
    asked: deque[_Asked] = deque()
    with threads("leaves", most_asked) as pool:
        for tensor, expected, piece in _pieces(source, shard):
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


def _pieces(source: IO[bytes], shard: Shard) -> Iterator[tuple[str, str | None, bytes]]:
    """The header, then pieces with the names of their tensors and the leaves that they should have."""
    header = _exactly(source, len(shard.header), shard)
    if header != shard.header:
        raise WeightsError(
            f"{shard.name} does not begin with the tensors of its manifest; the file was altered and is not used"
        )
    yield "", None, header
    for tensor in shard.tensors:
        left = tensor.spec.num_bytes
        for leaf in tensor.leaves:
            piece = _exactly(source, min(leaf_bytes, left), shard)
            left -= len(piece)
            yield tensor.spec.name, leaf, piece
    if source.read(1):
        raise WeightsError(
            f"{shard.name} has more than {shard.num_bytes} bytes; the file was overwritten and is not used"
        )


def _exactly(source: IO[bytes], num_bytes: int, shard: Shard) -> bytes:
    parts: list[bytes] = []
    missing = num_bytes
    while missing and (part := source.read(missing)):
        parts.append(part)
        missing -= len(part)
    if missing:
        raise WeightsError(
            f"{shard.name} has fewer bytes than {shard.num_bytes}; the file was cut and is not used"
        )
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compare_asked(shard: Shard, asked: _Asked) -> None:
    _compare(shard, asked.tensor, asked.expected, asked.found.result())


def _compare(shard: Shard, tensor: str, expected: str, found: str) -> None:
    if found != expected:
        raise WeightsError(
            f"tensor {tensor!r:.80} of {shard.name} has a leaf {found[:16]} instead of {expected[:16]}; the file was "
            "altered and is not used"
        )
