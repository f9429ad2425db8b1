"""What the trainer waits for while it takes no step: who has to act, and what helps. Pure.

The first of these that holds is told:

| cause | who has to act |
| --- | --- |
| the store of large samples does not answer | trainer: it asks again |
| training is over: `Stopped`, or the last samples, are waited for | dispatcher |
| samples are read, and what says where they come from is not | broker |
| large samples are read, and their objects are not in the store (yet) | worker |
| a protected group holds up a batch that is complete | trainer: it waits by its own rule |
| enough groups would be complete, had their samples their rewards | scorer |
| a version is being written and committed: workers begin nothing that needs it | trainer: it writes beside |
| too few groups are complete: which lack how many samples | worker |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollog.rules.standing_still import Cause, scorer

if TYPE_CHECKING:
    from collections.abc import Mapping

_most_named = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFacts:
    """What a trainer knows between two steps.

    `lacking` are groups that were ordered and are not complete, oldest first, with the samples that each lacks;
    `holding` are protected groups, with the seconds that they may still hold training up. `waiting` has the replicas
    whose samples wait for a reward, by group; the longest does so for `longest_wait_seconds`, and the last reward was
    given `seconds_since_reward` ago, None where none was. The version `in_flight` has been
    so for `in_flight_seconds`. `num_without_object` large samples wait for their objects, `store_silence` says why the
    store does not give them, where it does not answer.
    """

    num_ready: int
    groups_per_batch: int
    group_size: int
    lacking: tuple[tuple[int, int], ...] = ()
    holding: Mapping[int, float]
    num_unplaced: int = 0
    waiting: Mapping[int, frozenset[int]] = field(default_factory=dict)
    longest_wait_seconds: float = 0.0
    seconds_since_reward: float | None = None
    num_without_object: int = 0
    store_silence: str | None = None
    num_pending: int = 0
    in_flight: int | None = None
    in_flight_seconds: float = 0.0
    closing_reason: str | None = None
    is_stopped: bool = False
    close_seconds_left: float = 0.0


def training(version: int) -> Cause:
    """The trainer is away, making this version."""
    return Cause(
        what=f"the trainer computes version {version}",
        remedy="if that takes much longer than other steps, see in its log and its processes whether it hangs",
        waits_on="trainer",
    )


def in_flight(version: int, seconds: float) -> Cause:
    """A version is being written and committed, and nothing else can go on."""
    return Cause(
        what=f"version {version} is being written to the store and committed, for {seconds:.0f} s so far",
        remedy="if that takes much longer than other versions, see what the trainer's log says of the store",
        waits_on="trainer",
    )


def cause_of(facts: TrainerFacts) -> Cause:
    """What the next step, or the close of the run, waits for."""
    if facts.store_silence is not None:
        return _store_is_silent(facts, facts.store_silence)
    if facts.closing_reason is not None:
        return _closing(facts)
    if facts.num_unplaced:
        return Cause(
            what=f"{facts.num_unplaced} samples wait until control and tasks are read up to their ends",
            remedy="see whether the broker answers",
            waits_on="broker",
        )
    if facts.num_without_object:
        return _objects_are_missing(facts)
    return _groups_are_waited_for(facts)


def _store_is_silent(facts: TrainerFacts, silence: str) -> Cause:
    return Cause(
        what=f"{facts.num_without_object} large samples wait, and nothing is judged of them: {silence}",
        remedy="no attempt is used up meanwhile",
        waits_on="trainer",
    )


def _objects_are_missing(facts: TrainerFacts) -> Cause:
    return Cause(
        what=f"the store does not have the objects of {facts.num_without_object} large samples",
        remedy="check that workers and trainer use the same store; after broker.payload_wait_seconds they are dead",
        waits_on="worker",
    )


def _groups_are_waited_for(facts: TrainerFacts) -> Cause:
    if facts.holding and facts.num_ready >= facts.groups_per_batch:
        return _held(facts)
    if facts.num_ready + _num_unscored(facts) >= facts.groups_per_batch and facts.waiting:
        return _unscored(facts)
    if facts.in_flight is not None:
        return in_flight(facts.in_flight, facts.in_flight_seconds)
    return _too_few(facts)


def _num_unscored(facts: TrainerFacts) -> int:
    """Groups that lack nothing but rewards."""
    return sum(0 < num <= len(facts.waiting.get(group, ())) for group, num in facts.lacking)


def _closing(facts: TrainerFacts) -> Cause:
    if facts.is_stopped:
        return Cause(
            what="training is over, and the last samples are being read",
            remedy="see whether the broker answers",
            waits_on="broker",
        )
    return Cause(
        what="training is over, and the dispatcher has not said that the workers stopped: it is waited for, at most "
        f"{max(0.0, facts.close_seconds_left):.0f} s more",
        remedy="if no dispatcher runs, start one with `rollog dispatch`",
        waits_on="dispatcher",
    )


def _held(facts: TrainerFacts) -> Cause:
    lacks = dict(facts.lacking)
    groups = sorted(facts.holding)
    named = ", ".join(
        f"{group} (lacks {lacks.get(group, 0)} of {facts.group_size})" for group in groups[:_most_named]
    )
    return Cause(
        what=f"a batch is complete, and protected group(s) {named}{_more(len(groups))} would go stale again by it: "
        f"they are waited for, at most {max(facts.holding.values()):.0f} s more",
        remedy="the dispatcher's log names their worker; freshness.patience_seconds bounds how long training waits",
        waits_on="trainer",
    )


def _unscored(facts: TrainerFacts) -> Cause:
    num_samples = sum(map(len, facts.waiting.values()))
    last = (
        "no reward has come since this trainer began"
        if facts.seconds_since_reward is None
        else f"the last reward came {facts.seconds_since_reward:.0f} s ago"
    )
    return Cause(
        what=f"{facts.num_ready} of {facts.groups_per_batch} groups are complete; {num_samples} finished samples wait "
        f"for a reward, the longest for {facts.longest_wait_seconds:.0f} s, and {last}",
        remedy="see whether the program runs that writes to the topic of rewards; after reward.deadline_seconds a "
        "sample without one is given up and made again",
        waits_on=scorer,
    )


def _too_few(facts: TrainerFacts) -> Cause:
    ready = f"{facts.num_ready} of {facts.groups_per_batch} groups are complete"
    pending = f", {facts.num_pending} verdicts are to be published" if facts.num_pending else ""
    if not facts.lacking:
        return Cause(
            what=f"{ready}, and no other was issued{pending}",
            remedy="see in the dispatcher's log what it waits for",
            waits_on="dispatcher",
        )
    named = ", ".join(
        f"group {group} lacks {num} of {facts.group_size}" for group, num in facts.lacking[:_most_named]
    )
    return Cause(
        what=f"{ready}; {named}{_more(len(facts.lacking))}{pending}",
        remedy="the dispatcher's log and `rollog watch` name the worker",
        waits_on="worker",
    )


def _more(num: int) -> str:
    return f" and {num - _most_named} more" if num > _most_named else ""
