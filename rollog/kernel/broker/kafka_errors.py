"""The one place where kafka-python's exceptions become rollog's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

from rollog.kernel.broker.client_errors import Meaning
from rollog.kernel.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Iterator

_meanings: tuple[tuple[tuple[type[BaseException], ...], Meaning], ...] = (
    (
        (
            kafka_errors.ProducerFencedError,
            kafka_errors.InvalidProducerEpochError,
            kafka_errors.InvalidProducerIdMappingError,
            # What the coordinator says of a transaction that it has aborted for its age, or of an id it has forgotten.
            kafka_errors.InvalidTxnStateError,
            kafka_errors.UnknownProducerIdError,
        ),
        Meaning.FENCED,
    ),
    ((kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError), Meaning.TOO_LARGE),
    ((kafka_errors.UnknownTopicOrPartitionError, kafka_errors.InvalidTopicError), Meaning.NO_TOPIC),
    ((kafka_errors.OffsetOutOfRangeError,), Meaning.NO_RECORDS),
    (
        (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError),
        Meaning.REFUSED,
    ),
    ((kafka_errors.AuthorizationError, kafka_errors.PolicyViolationError), Meaning.DENIED),
    ((kafka_errors.KafkaConnectionError, kafka_errors.NodeNotReadyError), Meaning.AWAY),
    ((kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError), Meaning.UNKNOWN_OUTCOME),
)
"""What each kind of error is to rollog; the first match wins."""


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
    for kinds, meaning in _meanings:
        if _is_any(error, kinds):
            return meaning.error(detail)
    if any(refusal in str(error) for refusal in _refusals):
        return Meaning.DENIED.error(detail)
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
