"""The one place where kafka-python's exceptions become rollog's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

from rollog.kernel.errors import (
    BrokerError,
    BrokerRefused,
    BrokerTimeout,
    NotAuthorized,
    ProducerFenced,
    RecordTooLarge,
    TopicMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_denied_remedy = "grant the right with an ACL, `rollog topics acls` prints those of each role"

_meanings: tuple[tuple[tuple[type[BaseException], ...], type[BrokerError], str], ...] = (
    (
        (
            kafka_errors.ProducerFencedError,
            kafka_errors.InvalidProducerEpochError,
            kafka_errors.InvalidProducerIdMappingError,
            # What the coordinator says of a transaction that it has aborted for its age, or of an id it has forgotten.
            kafka_errors.InvalidTxnStateError,
            kafka_errors.UnknownProducerIdError,
        ),
        ProducerFenced,
        (
            "another process has taken over this transactional id, or this one was silent for longer than the broker"
            " allows: this process must end"
        ),
    ),
    (
        (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError),
        RecordTooLarge,
        "raise the topic's max.message.bytes or send less",
    ),
    (
        (kafka_errors.UnknownTopicOrPartitionError, kafka_errors.InvalidTopicError),
        TopicMismatch,
        "create the topic with `rollog topics create`",
    ),
    (
        (kafka_errors.OffsetOutOfRangeError,),
        BrokerError,
        "the records there were deleted, or never existed",
    ),
    (
        (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError),
        BrokerRefused,
        "correct the user and its password in broker.security",
    ),
    (
        (kafka_errors.AuthorizationError, kafka_errors.PolicyViolationError),
        NotAuthorized,
        _denied_remedy,
    ),
    (
        (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError),
        BrokerTimeout,
        "the outcome is unknown: end and recover from the log",
    ),
)
"""What each kind of error is to rollog, and what to do about it; the first match wins."""


_dump = " failed with response "
_refusals = tuple(
    kind.__name__
    for kind in (
        kafka_errors.TopicAuthorizationFailedError,
        kafka_errors.GroupAuthorizationFailedError,
        kafka_errors.TransactionalIdAuthorizationFailedError,
        # What a producer is told that may write to no topic at all.
        kafka_errors.ClusterAuthorizationFailedError,
    )
)
"""Refusals that the library passes on as text only, where a producer did not expect them."""


def translated(error: BaseException, place: str) -> BrokerError:
    """What `error`, met while doing `place`, means to rollog."""
    if isinstance(error, BrokerError):
        return error
    detail = f"{place}: {_described(error)}"
    for kinds, meaning, remedy in _meanings:
        if _is_any(error, kinds):
            return meaning(f"{detail}; {remedy}")
    if any(refusal in str(error) for refusal in _refusals):
        return NotAuthorized(f"{detail}; {_denied_remedy}")
    return BrokerError(detail)


@contextmanager
def translating(place: str) -> Iterator[None]:
    """Turn kafka-python's exceptions into rollog's, saying what was being done."""
    try:
        yield
    except (kafka_errors.KafkaError, OSError) as error:
        raise translated(error, place) from error


def _is_any(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether it is one of `kinds`, or carries one as kafka-python's state errors carry their cause."""
    return isinstance(error, kinds) or any(isinstance(part, kinds) for part in error.args)


def _described(error: BaseException) -> str:
    name, text = type(error).__name__, str(error)
    if _dump in text:
        # What follows is request and response with all their fields: hundreds of characters, which name nothing else.
        text = f"{name}: {getattr(error, 'description', '')}"
    return text if name in text else f"{name}: {text}" if text else name
