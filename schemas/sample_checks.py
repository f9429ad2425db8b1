"""What a sample promises beyond its types. A finished one is complete, so that nothing later fails on its arrays.

    counts      attempts, versions and tokens count from 0, or say that they are unknown
    sequences   arrays of one length, segments that cover them; a fork begins as a sequence before it
    turns       numbered in order, apart from each other; loss mask 1 inside trained turns and nowhere else
    numbers     rewards are finite, and so are log-probabilities of trained tokens
    payload     arrays are here, or in the object that is named, not in both

Each check raises SchemaError, naming sample and value.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from schemas.errors import SchemaError
from schemas.samples import Sample, Status
from schemas.tasks import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.samples import Fork, Payload, Row, Segment, TurnSpan

_payload_name = re.compile("[0-9a-f]{64}")
most_attempts = 1 << 31
"""More than any rollout is ordered."""


def check_sample(sample: Sample) -> None:
    """Raises SchemaError where the sample breaks a promise of this module."""
    _check_counts(sample)
    if sample.status is Status.FINISHED:
        _check_finished(sample)


def _refuse(sample: Sample, message: str) -> SchemaError:
    return SchemaError(f"sample {sample.sample_id}: {message}")


def _check_counts(sample: Sample) -> None:
    if sample.wasted_tokens < 0:
        raise _refuse(sample, f"wasted_tokens is {sample.wasted_tokens}, not a number of tokens")
    if not -1 <= sample.attempt < most_attempts:
        raise _refuse(sample, f"attempt is {sample.attempt}, not a number of attempts")
    for segment in sample.all_segments:
        if segment.version < 0:
            raise _refuse(sample, f"a segment of version {segment.version}, versions begin at 0")


def _check_finished(sample: Sample) -> None:
    if sample.reward is not None and not isfinite(sample.reward):
        raise _refuse(sample, f"reward is {sample.reward}, not a finite number")
    lengths = _checked_lengths(sample)
    if sample.turns:
        _check_turns(sample, lengths)
    if sample.payload is None:
        if sample.turns:
            _check_masks(sample)
        if sample.kind is Kind.TRAINING:
            # Nearly every sample is one sequence, which needs no rows to be looked at.
            rows: Sequence[Sample | Row] = sample.rows() if sample.forks else (sample,)
            for number, row in enumerate(rows):
                _check_logprobs(sample, row, number)
    if sample.turn_rewards:
        _check_turn_rewards(sample)


def _checked_lengths(sample: Sample) -> Sequence[int]:
    """Length of the token ids of each sequence."""
    if sample.payload is not None:
        return _payload_lengths(sample, sample.payload)
    _check_row(sample, "", sample, sample.segments)
    lengths, whole = [sample.num_tokens], [len(sample.prompt_token_ids) + sample.num_tokens]
    for index, fork in enumerate(sample.forks):
        name = f"forks[{index}]."
        _check_row(sample, name, fork, fork.segments)
        if not 0 <= fork.parent <= index:
            raise _refuse(sample, f"{name}parent is {fork.parent}, not a sequence before it")
        if not 0 <= fork.shared <= whole[fork.parent]:
            raise _refuse(
                sample, f"{name}shared is {fork.shared}; its parent has {whole[fork.parent]} token ids"
            )
        lengths.append(len(fork.token_ids))
        whole.append(fork.shared + len(fork.context) + len(fork.token_ids))
    return lengths


def _check_row(sample: Sample, name: str, row: Sample | Fork, segments: Sequence[Segment]) -> None:
    num_tokens = len(row.token_ids)
    if len(row.behaviour_logprobs) != num_tokens or len(row.loss_mask) != num_tokens:
        raise _refuse(
            sample,
            f"{name}token_ids has {num_tokens} entries, behaviour_logprobs {len(row.behaviour_logprobs)}, "
            f"loss_mask {len(row.loss_mask)}; they must be equal",
        )
    _check_segments(sample, segments, num_tokens)


def _check_segments(sample: Sample, segments: Sequence[Segment], num_tokens: int) -> None:
    gap = gap_in(segments, num_tokens)
    if gap is not None:
        raise _refuse(sample, gap)


def gap_in(segments: Sequence[Segment], num_tokens: int) -> str | None:
    """Where spans leave a token out or overlap, in words; None where they cover `num_tokens` in order."""
    position = 0
    for segment in segments:
        if segment.start != position or segment.end <= segment.start:
            return (
                f"segment [{segment.start}, {segment.end}) of version {segment.version} does not begin at token "
                f"{position} or is empty"
            )
        position = segment.end
    return None if position == num_tokens else f"segments cover {position} of {num_tokens} response tokens"


def _payload_lengths(sample: Sample, payload: Payload) -> Sequence[int]:
    if not _payload_name.fullmatch(payload.sha256) or payload.num_bytes < 1:
        raise _refuse(
            sample, f"payload {payload.sha256[:80]!r} of {payload.num_bytes} bytes is no name of an object"
        )
    if len(payload.num_tokens) != 1 + len(sample.forks):
        raise _refuse(
            sample,
            f"payload.num_tokens has {len(payload.num_tokens)} entries for {1 + len(sample.forks)} sequences",
        )
    rows: list[Sample | Fork] = [sample, *sample.forks]
    for row, num_tokens in zip(rows, payload.num_tokens, strict=True):
        before = row.prompt_token_ids if isinstance(row, Sample) else row.context
        if any(len(array) for array in (before, row.token_ids, row.behaviour_logprobs, row.loss_mask)):
            raise _refuse(sample, "it has arrays here and names a payload; they stand in one place")
        _check_segments(sample, row.segments, num_tokens)
    return payload.num_tokens


def _check_turns(sample: Sample, lengths: Sequence[int]) -> None:
    for turn in sample.turns:
        _check_place(sample, turn, lengths)
    if [turn.number for turn in sample.turns] != list(range(len(sample.turns))):
        raise _refuse(sample, "its turns are not numbered 0, 1, 2, ...")


def _check_place(sample: Sample, turn: TurnSpan, lengths: Sequence[int]) -> None:
    if not 0 <= turn.sequence < len(lengths):
        raise _refuse(sample, f"turn {turn.number} is of sequence {turn.sequence}; there are {len(lengths)}")
    if not 0 <= turn.start < turn.end <= lengths[turn.sequence]:
        raise _refuse(
            sample,
            f"turn {turn.number} is [{turn.start}, {turn.end}) of {lengths[turn.sequence]} token ids",
        )


def _check_masks(sample: Sample) -> None:
    """Each sampled token is in one turn, and trained as that says."""
    for number, row in enumerate(sample.rows()):
        expected = np.zeros(len(row.token_ids), dtype="u1")
        is_sampled = np.zeros(len(row.token_ids), dtype=bool)
        for turn in sample.turns:
            if turn.sequence != number:
                continue
            if is_sampled[turn.start : turn.end].any():
                raise _refuse(sample, f"turn {turn.number} overlaps another one of sequence {number}")
            is_sampled[turn.start : turn.end] = True
            expected[turn.start : turn.end] = turn.untrained is None
        wrong = np.flatnonzero((row.loss_mask != 0) != (expected != 0))
        if wrong.size:
            raise _refuse(
                sample,
                f"loss_mask[{wrong[0]}] of sequence {number} is {row.loss_mask[wrong[0]]}; its turns say otherwise",
            )


def _check_turn_rewards(sample: Sample) -> None:
    if sample.forks and not sample.turns:
        raise _refuse(
            sample, "turn_rewards, forks and no turns; nothing says which reward is whose: name its turns"
        )
    if sample.payload is None or sample.turns:
        expected = sample.num_turns
        if len(sample.turn_rewards) != expected:
            raise _refuse(
                sample,
                f"turn_rewards has {len(sample.turn_rewards)} entries, its loss mask {expected} turns; they must "
                "be equal",
            )
    for number, reward in enumerate(sample.turn_rewards):
        if not isfinite(reward):
            raise _refuse(sample, f"turn_rewards[{number}] is {reward}, not a finite number")


def _check_logprobs(sample: Sample, row: Row | Sample, number: int) -> None:
    logprobs = row.behaviour_logprobs
    finite = np.isfinite(logprobs)
    if np.count_nonzero(finite) == len(finite):  # a fifth of the time of `finite.all()`
        return
    trained = np.flatnonzero(~finite & (row.loss_mask != 0))
    if trained.size:
        position = int(trained[0])
        place = f" of sequence {number}" if number else ""
        raise _refuse(
            sample,
            f"behaviour_logprobs[{position}]{place} is {logprobs[position]}, but that token is to be trained",
        )
