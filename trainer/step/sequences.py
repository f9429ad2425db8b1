"""Samples of several sequences: which rows of a batch are one rollout, which turn a token is of.

A rollout counts once, however many sequences it has: it has one reward and one baseline, and means over samples are
over rollouts. A batch has one row per sequence, those of a sample side by side; ranks and micro-batches share them out
row by row.

Example: a session of three turns whose second call edited the history. Turns 0 and 2 are sequence 0, turn 1 is a fork:

    position   row                            turns of its trained tokens   num_sample_tokens
    0          prompt | 0 0 0 . . 2 2         0, 2                          7
    1          prompt, edited | 1 1           1                             7
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from schemas import int32_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas import Row, TurnSpan
    from schemas.arrays import Int32Array
    from trainer.step.ports import Float64Array, TrainingBatch

SampleKey = tuple[bool, int]


def sample_key(batch: TrainingBatch, position: int) -> SampleKey:
    """What the rows of one sample have in common, and those of two samples do not."""
    number = batch.samples[position].sample
    return (True, position) if number is None else (False, number)


def positions_by_sample(batch: TrainingBatch) -> list[list[int]]:
    """The positions of the sequences of each sample, in the order of the batch."""
    positions = range(len(batch.samples))
    return [list(members) for _, members in groupby(positions, key=lambda place: sample_key(batch, place))]


def turns_of_tokens(turns: Sequence[TurnSpan], rows: Sequence[Row]) -> list[Int32Array]:
    """For each row the number of the turn of each of its response tokens, -1 for context."""
    numbers = [np.full(len(row.token_ids), -1) for row in rows]
    for turn in turns:
        numbers[turn.sequence][turn.start : turn.end] = turn.number
    return [int32_array(of_row) for of_row in numbers]


def rewards_of_tokens(turns: Int32Array, turn_rewards: Sequence[float]) -> Float64Array:
    """What comes with each trained token of one sequence, where turns have rewards.

    The reward of a turn comes with the last token of the newest turn of this sequence that is not newer than it. So
    those of turns that other sequences have between two of this one fall on the earlier of the two, those after all of
    them on the last, and those before the first are the past: from any token on, what comes is what turns have from its
    own on, as in `trainer.step.advantages`.

    Args:
        turns: of each trained token the number of its turn, from 0.
        turn_rewards: one per turn of the sample, trained or not.
    """
    rewards = np.zeros(turns.size)
    own, from_the_end = np.unique(turns[::-1], return_index=True)
    newest = np.searchsorted(own, np.arange(len(turn_rewards)), side="right") - 1
    for place, reward in zip(newest, turn_rewards, strict=True):
        if place >= 0:
            rewards[turns.size - 1 - from_the_end[place]] += reward
    return rewards
