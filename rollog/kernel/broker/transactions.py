"""Transactions through a client library: what the transactional producers of both Kafka clients share.

A library's own commit may return normally although records of the transaction had failed, and may wait for ever on
some faults. So every record is awaited before the commit, and every call has a deadline. A broker that refuses this
client is not waited for.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol

from rollog.kernel.broker.sending import RecordSender, SendingLibrary
from rollog.kernel.broker.transaction_guard import TransactionGuard
from rollog.kernel.errors import BrokerError, BrokerRefused, BrokerTimeout, ProducerFenced
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.kernel.broker.kafka_topics import TopicDirectory
    from rollog.kernel.broker.ports import Delivery, Headers, TopicPartition
    from rollog.kernel.broker.refusal_watch import RefusalWatch

_max_in_flight_bytes = 64 << 20
_abort_timeout_seconds = 30.0
_least_commit_seconds = 0.1


class TransactionLibrary(SendingLibrary, Protocol):
    """A transactional producer of a client library. Everything here raises rollog's errors.

    Deadlines are by the monotonic clock; BrokerTimeout says that one has passed.
    """

    def take_over(self, places: Sequence[TopicPartition], deadline: float) -> None:
        """Fence earlier producers, and decide what they left open in `places`."""
        ...

    def begin(self) -> None:
        """Start a transaction."""
        ...

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str, deadline: float) -> None:
        """Commit consumer positions as part of the transaction."""
        ...

    def commit(self, deadline: float) -> None:
        """Commit; on return every partition written knows of it."""
        ...

    def abort(self, deadline: float) -> None:
        """Abort; on return every partition written knows of it."""
        ...


class GuardedProducer(Component):
    """Producer of transactions; its take-over has fenced every earlier one of the same id.

    See `rollog.kernel.broker.ports.TransactionalProducer`.
    """

    def __init__(
        self,
        library: TransactionLibrary,
        directory: TopicDirectory,
        refusals: RefusalWatch,
        transactional_id: str,
        *,
        block_seconds: float,
    ) -> None:
        self._library = library
        self._transactional_id = transactional_id
        self._directory = directory
        self._refusals = refusals
        self._block_seconds = block_seconds
        self._sender = RecordSender(
            library,
            directory,
            refusals,
            max_in_flight_bytes=_max_in_flight_bytes,
            block_seconds=block_seconds,
        )
        self._guard = TransactionGuard(transactional_id)

    def take_over(self, places: Sequence[TopicPartition]) -> None:
        """Fence earlier producers, and decide what they left open in `places`. Comes before everything else."""
        deadline = time.monotonic() + self._block_seconds
        self._refusals.during(lambda: self._library.take_over(places, deadline))

    def begin(self) -> None:
        """Start a transaction."""
        self._guard.require_idle()
        try:
            self._library.begin()
        except BrokerError as error:
            raise self._guard.end(error) from error
        self._guard.begun()

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Send one record within the open transaction."""
        self._guard.require_transaction()
        try:
            return self._sender.send(topic, partition, value, key, headers)
        except ProducerFenced as fenced:
            self._guard.end(fenced)
            raise

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str) -> None:
        """Commit consumer positions for `group_id` as part of the transaction."""
        self._guard.require_transaction()
        self._sender.require_usable()
        if not offsets:
            return
        deadline = time.monotonic() + self._block_seconds
        try:
            self._refusals.during(lambda: self._library.send_offsets(offsets, group_id, deadline))
        except BrokerError as error:
            # A library may add these offsets to the next transaction too: there must be none.
            raise self._guard.end(error) from error

    def commit(self, timeout_seconds: float) -> None:
        """Wait for every record, then commit; aborts and raises when one failed.

        On return every partition written knows of it.
        """
        self._guard.require_transaction()
        deadline = time.monotonic() + timeout_seconds
        try:
            self._sender.wait(timeout_seconds)
        except BrokerError as error:
            self._guard.record_failed(error, self.abort)
            raise
        deadline = max(deadline, time.monotonic() + _least_commit_seconds)
        try:
            self._refusals.during(lambda: self._library.commit(deadline))
        except Exception as error:  # whatever it is, the transaction may be committed
            raise self._commit_failed(error) from error
        self._finish()

    def abort(self) -> None:
        """Undo the open transaction; does nothing when none is open or this producer has ended."""
        if not self._guard.can_abort:
            return
        if not self._guard.has_ended:
            deadline = time.monotonic() + _abort_timeout_seconds
            try:
                self._refusals.during(lambda: self._library.abort(deadline))
            except BrokerError as error:
                raise self._guard.end(error) from error
        self._finish()

    def close(self) -> None:
        """Abort what is open and end; raises nothing."""
        try:
            with contextlib.suppress(BrokerError):
                self.abort()
        finally:
            self._guard.closed()
            self._sender.shut(deliver=False)

    def _finish(self) -> None:
        self._guard.finished()
        self._sender.forget()

    def _commit_failed(self, error: Exception) -> BrokerError:
        if isinstance(error, ProducerFenced | BrokerTimeout):
            return self._guard.end(error)
        kind = BrokerRefused if isinstance(error, BrokerRefused) else BrokerTimeout
        return self._guard.end(
            kind(
                f"committing a transaction of {self._transactional_id}: {error}; whether it was committed is unknown:"
                " end and recover from the log"
            )
        )
