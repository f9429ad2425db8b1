"""The trainer's view of `rewards`: what programs outside of the run say of samples that wait for it.

Consumes `rewards`, read_committed, from the mark in the ledger. Waits for nothing: which reward counts follows from
what stands on the topic and from how far the ledger has come, not from what was read of tasks and samples. What is no
reward goes to dead-letters, in the transaction of the next ledger record, a limited number of them: nothing that stands
on the topic stops the trainer. On a crash the next trainer reads again from the mark.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import drain
from rollog.kernel.errors import BrokerError, NotAuthorized, TopicMismatch
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from rollog.rules.dead_letters import dead_letter
from rollog.rules.late_rewards import GivenReward, RewardOutcome, attempt_named
from schemas import SchemaError

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.rules.ledger_state import LedgerState
    from rollog.settings.groups import GroupConfig
    from schemas import DeadLetter, LedgerRecord
    from trainer.buffer.sample_buffer import SampleBuffer

log = get_logger("trainer")

_most_at_once = 2000
"""Records that one turn of the loop takes in, so that a flood holds up no batch."""
_most_letters = 100
_letters_per_second = 1.0
_most_letter_bytes = 1 << 16
_quiet_seconds = 10.0


@dataclass(slots=True)
class LetterRate:
    """How many dead letters may be written: a number at once, then so many a second. Pure."""

    most: float = _most_letters
    per_second: float = _letters_per_second
    _left: float = _most_letters
    _at: float | None = None

    def takes(self, now_seconds: float) -> bool:
        """Whether one more may be written now."""
        passed = 0.0 if self._at is None else max(0.0, now_seconds - self._at)
        self._at = now_seconds
        self._left = min(self.most, self._left + passed * self.per_second)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A record of `rewards`, decoded, or why it cannot be."""

    record: Record
    given: GivenReward | None
    defect: str = ""


class RewardIntake(Component):
    """Reads rewards into the buffer, and says in each ledger record how far.

    `num_by_outcome` counts records, `last_given_seconds` is when a sample got its reward last, by the caller's clock.
    """

    def __init__(
        self, broker: Broker, topic: str, ledger: LedgerState, buffer: SampleBuffer, groups: GroupConfig
    ) -> None:
        self._place = TopicPartition(topic, 0)
        self._ledger = ledger
        self._buffer = buffer
        self._groups = groups
        self._consumer = broker.consumer(client_id="trainer-rewards")
        self._consumer.assign({self._place: ledger.reward_mark})
        self._read_before = ledger.reward_position
        self._is_restored = False
        self._waiting: list[_Arrived] = []
        self._goal: tuple[float, int] | None = None
        self._rate = LetterRate()
        self._letters: list[DeadLetter] = []
        self._told = -_quiet_seconds
        self.num_by_outcome: Counter[RewardOutcome] = Counter()
        self.last_given_seconds: float | None = None

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    @property
    def position(self) -> int:
        """Everything before this offset is in the buffer, or was found to be of no use."""
        return self._waiting[0].record.offset if self._waiting else self._consumer.position(self._place)

    def take_in(self, now_seconds: float) -> None:
        """Take in what has arrived; then give up samples that have waited too long.

        Raises BrokerTimeout where what an earlier trainer had read cannot be read again.
        """
        self._restore(now_seconds)
        self._buffer.waits.look(now_seconds)
        # `unrewarded` is right up to the position at which it is decided, so that stays until it is committed.
        if self._buffer.has_unrewarded:
            return
        arrived = self._waiting or [_arrived(record) for record in self._consumer.poll(0.0, _most_at_once)]
        self._waiting = []
        for each in arrived:
            self._take(each, now_seconds)
        self._end_waits(now_seconds)

    def marked(self, record: LedgerRecord) -> LedgerRecord:
        """The ledger record with the position, and where a new trainer has to begin."""
        position = self.position
        closing = [group.group_id for group in record.closed_groups]
        mark = self._buffer.waits.kept.mark(position, closing)
        return replace(record, reward_position=position, reward_mark=mark)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Those of records before the position that no ledger record has brought along."""
        return list(self._letters)

    def release(self) -> None:
        """The dead letters are committed."""
        self._letters.clear()

    def _restore(self, now_seconds: float) -> None:
        """Read again what an earlier trainer had read: samples of open groups may wait for it."""
        if self._is_restored:
            return
        for record in drain(self._consumer, {self._place: self._read_before}):
            arrived = _arrived(record)
            if record.offset < self._read_before:
                self._take(arrived, now_seconds)
            else:
                self._waiting.append(arrived)
        self._is_restored = True

    def _take(self, arrived: _Arrived, now_seconds: float) -> None:
        outcome = self._outcome(arrived)
        self.num_by_outcome[outcome] += 1
        if outcome is RewardOutcome.GIVEN:
            self.last_given_seconds = now_seconds
        elif outcome is RewardOutcome.INVALID:
            self._set_aside(arrived, now_seconds)
        elif outcome is RewardOutcome.MISFIT and arrived.given is not None:
            self._tell(
                now_seconds,
                "reward does not fit its sample",
                arrived,
                f"{arrived.given.num_turns} turn_rewards: the sample has another number of turns",
            )

    def _outcome(self, arrived: _Arrived) -> RewardOutcome:
        given = arrived.given
        if given is None:
            return RewardOutcome.INVALID
        named = attempt_named(given.sample_id)
        if named is None:
            return RewardOutcome.UNMATCHED
        group, replica, _ = named
        if group in self._ledger.closed_groups:
            return RewardOutcome.LATE
        # As the ledger stood when it was read first, maybe by an earlier trainer: what that passed over stays so.
        reached = self._ledger.reward_reach.at(given.reference.offset)
        if replica >= self._groups.num_replicas or group >= reached.end(self._groups):
            return RewardOutcome.UNMATCHED
        return self._buffer.give(group, given)

    def _set_aside(self, arrived: _Arrived, now_seconds: float) -> None:
        record = arrived.record
        # What stands before that position has its dead letter in the log, if it was to have one.
        if record.offset < self._read_before or len(self._letters) >= _most_letters:
            return
        if self._rate.takes(now_seconds):
            letter = dead_letter(
                record,
                reason=arrived.defect,
                error_class="SchemaError",
                owner="trainer",
                most_bytes=_most_letter_bytes,
            )
            self._letters.append(letter)
        self._tell(now_seconds, "record of rewards set aside", arrived, arrived.defect)

    def _tell(self, now_seconds: float, event: str, arrived: _Arrived, reason: str) -> None:
        """At most one line in a while: the counters have the number."""
        if now_seconds - self._told >= _quiet_seconds:
            self._told = now_seconds
            sample = "" if arrived.given is None else arrived.given.sample_id
            log.warning(event, offset=arrived.record.offset, sample=sample, reason=reason)

    def _end_waits(self, now_seconds: float) -> None:
        """A reward that was written in time counts, however late it is read: the end is asked for behind that time."""
        if self._goal is None:
            if not any(self._buffer.waits.over(now_seconds)):
                return
            try:
                end = self._consumer.end_offsets([self._place])[self._place]
            except NotAuthorized:
                raise
            except BrokerError as error:
                log.warning("samples without reward wait for the broker", error=str(error))
                return
            self._goal = (now_seconds, end)
        moment, end = self._goal
        if self.position >= end:
            self._goal = None
            self._buffer.end_waits(moment)


def check_rewards_retained(broker: Broker, topic: str, mark: int) -> None:
    """Raise TopicMismatch, naming the gap, where rewards that a sample may wait for are not in the topic any more."""
    place = TopicPartition(topic, 0)
    with broker.consumer(client_id="trainer-rewards") as consumer:
        beginning = consumer.beginning_offsets([place])[place]
    if beginning > mark:
        raise TopicMismatch(
            f"{topic}: rewards from offset {mark} to {beginning - 1} may be those of samples that wait for one, and "
            "are no longer in the topic; raise its retention (retention.ms=-1) and restore them from a replica, or "
            "start a new run"
        )


def _arrived(record: Record) -> _Arrived:
    try:
        if record.unread is not None:
            return _Arrived(record, None, record.unread.reason)
        return _Arrived(record, GivenReward.read(record.value or b"", record.offset))
    except SchemaError as error:
        return _Arrived(record, None, f"not a reward: {error}")
