"""The one place where the errors of confluent-kafka become rollog's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from rollog.kernel.broker.client_errors import Meaning
from rollog.kernel.errors import BrokerError, NotAuthorized

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

_meanings: tuple[tuple[frozenset[int], Meaning], ...] = (
    (
        frozenset(
            {
                KafkaError._FENCED,  # noqa: SLF001 - the library names its own errors so
                KafkaError.PRODUCER_FENCED,
                KafkaError.INVALID_PRODUCER_EPOCH,
                KafkaError.INVALID_PRODUCER_ID_MAPPING,
                # What the coordinator says of a transaction that it has aborted for its age, or of an id it forgot.
                KafkaError.INVALID_TXN_STATE,
                KafkaError.UNKNOWN_PRODUCER_ID,
            }
        ),
        Meaning.FENCED,
    ),
    (
        frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}),
        Meaning.TOO_LARGE,
    ),
    (
        frozenset(
            {
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError.TOPIC_EXCEPTION,
                KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
                KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
            }
        ),
        Meaning.NO_TOPIC,
    ),
    (
        frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}),  # noqa: SLF001
        Meaning.NO_RECORDS,
    ),
    (
        frozenset(
            {
                KafkaError._AUTHENTICATION,  # noqa: SLF001
                KafkaError.SASL_AUTHENTICATION_FAILED,
                KafkaError.UNSUPPORTED_SASL_MECHANISM,
            }
        ),
        Meaning.REFUSED,
    ),
    (
        frozenset(
            {
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.GROUP_AUTHORIZATION_FAILED,
                KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                KafkaError.CLUSTER_AUTHORIZATION_FAILED,
                KafkaError.POLICY_VIOLATION,
            }
        ),
        Meaning.DENIED,
    ),
    (
        frozenset(
            {
                KafkaError._TIMED_OUT,  # noqa: SLF001
                KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
                KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
                KafkaError.REQUEST_TIMED_OUT,
                # Where a producer ends with records under way.
                KafkaError._PURGE_QUEUE,  # noqa: SLF001
                KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
            }
        ),
        Meaning.UNKNOWN_OUTCOME,
    ),
)
"""What each kind of error is to rollog; the first match wins."""


def translated(error: KafkaError, place: str) -> BrokerError:
    """What `error`, met while doing `place`, means to rollog."""
    detail = f"{place}: {error.name()}: {error.str()}"
    for codes, meaning in _meanings:
        if error.code() in codes:
            return meaning.error(detail)
    return BrokerError(detail)


def error_in(exception: KafkaException) -> KafkaError:
    """The error that an exception of the library carries."""
    error: KafkaError = exception.args[0]
    return error


class LastErrors:
    """Listens to what a client says outside of calls: outages, and what ended it for good.

    An outage is no error to whoever reads or writes: clients connect again by themselves.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self.fatal: KafkaError | None = None
        self.is_disconnected = False
        """Whether the client had no connection when it last said anything; whoever hears from the broker clears it."""

    def __call__(self, error: KafkaError) -> None:
        """The library's `error_cb`."""
        logger.debug("client error client_id=%s error=%s", self._client_id, error)
        if error.code() in _disconnected:
            self.is_disconnected = True
        if error.fatal() and self.fatal is None:
            self.fatal = error

    def hear(self, exception: KafkaException) -> None:
        """Remember what a call raised that serves callbacks: what ended the client comes out of it, too."""
        if self.fatal is None:
            self.fatal = error_in(exception)

    def knows_why(self, exception: KafkaException) -> bool:
        """Whether the exception says what is wrong itself, or repeats what was heard before."""
        return self.fatal is not None or error_in(exception).code() not in _repeats

    def translated(self, exception: KafkaException, place: str) -> BrokerError:
        """What an exception means; once a client has ended for good, why it did."""
        error = error_in(exception)
        if self.fatal is not None and error.code() in _repeats:
            error = self.fatal
        return translated(error, place)


class CommitReports:
    """Listens to what becomes of the offsets a consumer commits: a refusal is told once, all else is for debugging."""

    def __init__(self, group_id: str | None) -> None:
        self._group_id = group_id
        self._has_told_refusal = False

    def __call__(self, error: KafkaError | None, places: Sequence[Any]) -> None:
        """The library's `on_commit`."""
        for each in (error, *(place.error for place in places)):
            if each is not None:
                self.failed(each)

    def failed(self, error: KafkaError) -> None:
        """Offsets were not committed, or the broker that keeps them could not be asked for."""
        logger.debug("offsets not committed group=%s error=%s", self._group_id, error)
        if self._group_id is None or self._has_told_refusal:
            return  # without a group of its own a consumer commits nothing: only the library wants one
        told = translated(error, f"committing offsets under group {self._group_id}")
        if isinstance(told, NotAuthorized):
            self._has_told_refusal = True
            logger.warning("%s", told)


_disconnected = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL}  # noqa: SLF001
)
_repeats = frozenset(
    {
        KafkaError._FATAL,  # noqa: SLF001
        KafkaError._STATE,  # noqa: SLF001
        KafkaError._PURGE_QUEUE,  # noqa: SLF001
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
    }
)
"""What the library says of calls and records after the error that has ended a client."""
