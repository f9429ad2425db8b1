"""I11 and I12 as far as one record tells: what stands before each trained token, and that it is counted once.

Of a sample that names its turns every sampled token is in one turn of one sequence, and all else is context. What an
engine was really sent shows in no record by itself: `rollog verify` computes the log-probabilities anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from consumers.audit.findings import Check, Place
    from schemas import Fork, Sample, TurnSpan

    Counts = npt.NDArray[np.int64]


def num_counted_tokens(sample: Sample) -> int:
    """Tokens that a sample counts for: those of its turns, or those with loss mask 1 where it names none."""
    if sample.turns:
        return sum(turn.end - turn.start for turn in sample.turns)
    if sample.payload is not None:
        return sample.payload.num_trained_tokens
    return sum(int(np.count_nonzero(sequence.loss_mask)) for sequence in _sequences(sample))


def check_sequences(check: Check, sample: Sample, place: Place) -> None:
    """Every sequence of one trained sample; those whose arrays are in a payload count as not checked."""
    if not sample.turns:
        return
    if sample.payload is not None:
        check.num_unchecked += len(_sequences(sample))
        return
    check.num_checked += len(_sequences(sample))
    for message in sequence_faults(sample):
        check.find(message, place=place, record_id=sample.sample_id)


def sequence_faults(sample: Sample) -> Iterator[str]:
    """What is off about the sequences of a sample that names its turns; at most one fault each."""
    lengths: list[int] = []
    for number, sequence in enumerate(_sequences(sample)):
        turns = [turn for turn in sample.turns if turn.sequence == number]
        fault = _fault_of_prefix(sample, number, lengths) or _fault_of_turns(sequence, turns)
        if fault is not None:
            yield f"sequence {number}: {fault}"
        lengths.append(_num_before(sample, number) + len(sequence.token_ids))


def _sequences(sample: Sample) -> tuple[Sample | Fork, ...]:
    return (sample, *sample.forks)


def _num_before(sample: Sample, number: int) -> int:
    """Ids before the first sampled token."""
    if number == 0:
        return len(sample.prompt_token_ids)
    fork = sample.forks[number - 1]
    return fork.shared + len(fork.context)


def _fault_of_prefix(sample: Sample, number: int, lengths: Sequence[int]) -> str | None:
    """Whether the ids that a fork shares are there, in a sequence before it; `lengths` has all ids of each of these."""
    if number == 0:
        return None
    fork = sample.forks[number - 1]
    if not 0 <= fork.parent < number:
        return f"its parent is sequence {fork.parent}, which does not come before it"
    if not 0 <= fork.shared <= lengths[fork.parent]:
        return f"it shares {fork.shared} ids of sequence {fork.parent}, which has {lengths[fork.parent]}"
    return None


def _fault_of_turns(sequence: Sample | Fork, turns: Sequence[TurnSpan]) -> str | None:
    counts = np.zeros(len(sequence.token_ids), dtype=np.int64)
    is_trained = np.zeros(len(sequence.token_ids), dtype=bool)
    for turn in turns:
        counts[turn.start : turn.end] += 1
        is_trained[turn.start : turn.end] |= turn.untrained is None
    in_order = sorted(turns, key=lambda turn: turn.start)
    if not turns:
        return "no turn is in it"
    if [turn.number for turn in in_order] != sorted(turn.number for turn in turns):
        return "its turns do not follow each other by number"
    if counts.max(initial=0) > 1:
        return f"token {int(np.argmax(counts > 1))} is in {int(counts.max())} turns"
    if not (counts[0] and counts[-1]):
        return "its tokens do not begin and end with sampled ones; what stands outside of them is context"
    wrong = np.flatnonzero((sequence.loss_mask != 0) != is_trained)
    if wrong.size:
        return f"loss_mask[{wrong[0]}] is {sequence.loss_mask[wrong[0]]}; its turns say otherwise"
    return _fault_of_segments(sequence, counts)


def _fault_of_segments(sequence: Sample | Fork, counts: Counts) -> str | None:
    """Context takes the segment of the sampled token before it, so a version that sampled nothing is none."""
    for segment in sequence.segments:
        if not counts[segment.start]:
            return f"the segment of version {segment.version} begins with context at token {segment.start}"
    return None
