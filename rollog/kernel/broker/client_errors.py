"""What the errors of client libraries mean to rollog, in the same words for each library."""

from __future__ import annotations

from enum import Enum

from rollog.kernel.errors import (
    BrokerError,
    BrokerRefused,
    BrokerTimeout,
    BrokerUnreachable,
    NotAuthorized,
    ProducerFenced,
    RecordTooLarge,
    TopicMismatch,
)


class Meaning(Enum):
    """A kind of error: rollog's class for it, and what to do about it."""

    FENCED = (
        ProducerFenced,
        (
            "another process has taken over this transactional id, or this one was silent for longer than the broker"
            " allows: this process must end"
        ),
    )
    TOO_LARGE = (RecordTooLarge, "raise the topic's max.message.bytes or send less")
    NO_TOPIC = (TopicMismatch, "create the topic with `rollog topics create`")
    NO_RECORDS = (BrokerError, "the records there were deleted, or never existed")
    REFUSED = (BrokerRefused, "correct the user and its password in broker.security")
    DENIED = (NotAuthorized, "grant the right: `rollog topics acls`")
    AWAY = (BrokerUnreachable, "see that the broker runs, and that the network to it is well")
    UNKNOWN_OUTCOME = (BrokerTimeout, "the outcome is unknown: end and recover from the log")

    def error(self, detail: str) -> BrokerError:
        """The error of this kind about `detail`."""
        kind: type[BrokerError]
        kind, remedy = self.value
        return kind(f"{detail}; {remedy}")
