"""The dead letters of a run: listing them, and writing again those that can be used after a fix.

Consumes `dead-letters`, and `steps`, `samples` and `evaluations` to see what has been done already. Produces, where
asked to, records of `samples` and `evaluations`, all of them in one transaction. What is written again is a new record:
its header `dead_letter` names the dead letter. A dead letter that any record names is never written again, nor another
one of the same place. Two who do this at once exclude each other by their transactional id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.ledger import StoredLedger
from rollog.kernel.broker.ports import Record
from rollog.kernel.broker.reading import read_to_end, read_topic
from rollog.kernel.errors import ConfigError
from rollog.rules.reading import read_sample
from schemas import DeadLetter, Kind, LedgerKind, Sample
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollog.kernel.broker.ports import Broker, TransactionalProducer
    from rollog.kernel.broker.topics import RunTopics
    from rollog.rules.headers import SampleLimits

dead_letter_header = "dead_letter"
"""Header of a record that was written again: the offset of its letter in `dead-letters`."""
_commit_seconds = 30.0

Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDeadLetter:
    """A dead letter and its id, the offset it has in `dead-letters`."""

    letter_id: int
    timestamp_ms: int
    letter: DeadLetter

    @property
    def place(self) -> Place:
        """Where the refused record is."""
        return (self.letter.topic, self.letter.partition, self.letter.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinjection:
    """What became of one dead letter: written again, or why not."""

    letter_id: int
    is_done: bool
    reason: str = ""


def read_dead_letters(broker: Broker, topics: RunTopics) -> list[StoredDeadLetter]:
    """All dead letters, oldest first; a record that is none is listed too, with the reason."""
    with broker.consumer(client_id="dead-letters") as consumer:
        return [_stored(record) for record in read_to_end(consumer, topics.dead_letters, 0)]


def chosen_dead_letters(
    letters: list[StoredDeadLetter], chosen: Iterable[int] | None
) -> list[StoredDeadLetter]:
    """Those with these ids, or all. Raises ConfigError for an id that does not exist."""
    if chosen is None:
        return letters
    ids = set(chosen)
    if unknown := ids - {letter.letter_id for letter in letters}:
        raise ConfigError(
            f"there is no dead letter {min(unknown)}; `rollog dead-letters` lists those there are"
        )
    return [letter for letter in letters if letter.letter_id in ids]


def reinject(
    broker: Broker, topics: RunTopics, *, limits: SampleLimits, chosen: Iterable[int] | None = None
) -> list[Reinjection]:
    """Write again what can be used now, of the letters with these ids or of all; says so for each letter.

    Raises ConfigError for an id that does not exist and for a run that is over, TopicMismatch where `samples` or
    `evaluations` is missing.
    """
    with broker.transactional_producer(  # whoever came before has finished, or is fenced
        topics.reinjection_transactional_id,
        topics=[topics.samples, topics.evaluations],
        transaction_timeout_seconds=60.0,
    ) as producer:
        letters = read_dead_letters(broker, topics)
        wanted = chosen_dead_letters(letters, chosen)
        _require_open(broker, topics)
        done = _places_done(broker, topics, letters)
        outcomes = []
        for letter in wanted:
            reason = _obstacle(letter, topics, done, limits)
            outcomes.append(Reinjection(letter_id=letter.letter_id, is_done=not reason, reason=reason))
            if not reason:
                done.add(letter.place)
        _write(
            producer, [letter for letter, outcome in zip(wanted, outcomes, strict=True) if outcome.is_done]
        )
    return outcomes


def _write(producer: TransactionalProducer, letters: Iterable[StoredDeadLetter]) -> None:
    """Write the refused records of these letters again, all or none."""
    producer.begin()
    for stored in letters:
        letter = stored.letter
        headers = {**letter.headers, dead_letter_header: str(stored.letter_id).encode()}
        producer.send(
            letter.topic, letter.partition, letter.value, key=letter.key, headers=list(headers.items())
        )
    producer.commit(_commit_seconds)


def _stored(record: Record) -> StoredDeadLetter:
    try:
        letter = decode_as(DeadLetter, record.value or b"")
    except SchemaError as error:
        letter = DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=f"not a dead letter itself: {error}",
            error_class="SchemaError",
            owner="",
            value=record.value,
        )
    return StoredDeadLetter(letter_id=record.offset, timestamp_ms=record.timestamp_ms, letter=letter)


def _require_open(broker: Broker, topics: RunTopics) -> None:
    if any(entry.record.kind is LedgerKind.CLOSE for entry in StoredLedger(broker, topics)):
        raise ConfigError(f"run {topics.run} is over: nothing that is written to it now would be used")


def _places_done(broker: Broker, topics: RunTopics, letters: list[StoredDeadLetter]) -> set[Place]:
    """Where the records are whose letters have been written again."""
    places = {letter.letter_id: letter.place for letter in letters}
    named = {
        _named_dead_letter(record)
        for topic in (topics.samples, topics.evaluations)
        for record in read_topic(broker, topic, client_id="reinjected")
    }
    return {places[letter_id] for letter_id in named if letter_id in places}


def _named_dead_letter(record: Record) -> int | None:
    value = record.header(dead_letter_header) or b""
    return int(value) if value.isdigit() and len(value) < 19 else None  # noqa: PLR2004 - fits int64


def _obstacle(
    stored: StoredDeadLetter,
    topics: RunTopics,
    done: set[Place],
    limits: SampleLimits,
) -> str:
    """Why a letter cannot be written again; nothing, if it can."""
    letter = stored.letter
    if stored.place in done:
        return "was written again already"
    if letter.topic == topics.tasks:
        return "tasks are void once their lease has ended: the dispatcher issues another attempt"
    if letter.topic not in (topics.samples, topics.evaluations):
        return f"records of {letter.topic.rsplit('.', 1)[-1]} are only written by their owner"
    if letter.value_sha256 is not None:
        return "its bytes are too many to be copied, so they are not here"
    if letter.topic == topics.evaluations:
        return _obstacle_of_evaluation(letter)
    record = Record(
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        value=letter.value,
        headers=list(letter.headers.items()),
    )
    defect = read_sample(record, limits)[0].defect
    return "" if defect is None else f"still cannot be used: {defect}"


def _obstacle_of_evaluation(letter: DeadLetter) -> str:
    try:
        sample = decode_as(Sample, letter.value or b"")
    except SchemaError as error:
        return f"still cannot be used: {error}"
    return "" if sample.kind is Kind.EVALUATION else f"still cannot be used: a sample of kind {sample.kind}"
