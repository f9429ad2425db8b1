"""Pieces of a run made by rule, and a model that is a table: what a verification compares, without torch."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from consumers.verification.order import Part
from consumers.verification.pieces import Piece
from rollog.kernel.errors import WeightsError
from schemas import float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from schemas import Float32Array

num_words = 50


def digest_of(version: int) -> str:
    return f"{version:064x}"[::-1]


def table_logprobs(version: int, token_ids: Sequence[int]) -> Float32Array:
    """A walk from version to version: neighbours differ by a few hundredths of a nat."""
    draw = np.random.default_rng(7)
    steps = draw.normal(0.0, 0.05, size=(100, num_words))
    table = -3.0 + np.cumsum(steps, axis=0)
    return float32_array(table[version][np.asarray(token_ids)])


def a_piece(
    number: int,
    *,
    label: int = 0,
    made_by: int | None = None,
    worker: str = "worker-a",
    num_tokens: int = 12,
    noise: Callable[[int], Float32Array] | None = None,
    altered: float = 0.0,
) -> Piece:
    """Tokens drawn by the number, under the weights of `made_by` (the label's where left out)."""
    token_ids = int32_array(np.random.default_rng([number, label]).integers(0, num_words, num_tokens))
    recorded = table_logprobs(label if made_by is None else made_by, token_ids.tolist())
    if noise is not None:
        recorded = float32_array(recorded + noise(num_tokens))
    return Piece(
        version=label,
        weights_digest=digest_of(label)[:16],
        worker_id=worker,
        sample_id=f"g{number}.r0.a0",
        partition=number % 2,
        offset=number,
        prompt_token_ids=int32_array([1, 2]),
        token_ids=token_ids,
        recorded=float32_array(recorded + altered),
        is_compared=np.ones(num_tokens, dtype=np.bool_),
    )


def one_part(pieces: Sequence[Piece]) -> list[Part]:
    return [Part(pieces=pieces, complete_below=None)]


class TableScorer:
    """Answers from the table of the version that was loaded last; `loads` are the versions, in order."""

    def __init__(self) -> None:
        self.loads: list[int] = []

    def load(self, path: Path) -> None:
        self.loads.append(int(path.name))

    def logprobs(self, pieces: Sequence[Piece]) -> list[Float32Array]:
        return [table_logprobs(self.loads[-1], piece.token_ids.tolist()) for piece in pieces]


class TableWeights:
    """Versions 0 to `newest`; files of the missing ones are gone."""

    def __init__(self, newest: int, missing: Sequence[int] = ()) -> None:
        self.newest = newest
        self.missing = missing

    def digest(self, version: int) -> str | None:
        return digest_of(version) if 0 <= version <= self.newest else None

    @contextmanager
    def file(self, version: int) -> Iterator[Path]:
        if version in self.missing:
            raise WeightsError(f"weights of version {version} are not there")
        yield Path(str(version))
