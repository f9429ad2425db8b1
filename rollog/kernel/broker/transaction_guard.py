"""Which calls a transactional producer takes now: the part of its promises that needs no broker."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rollog.kernel.errors import BrokerError, BrokerRefused, BrokerTimeout, ProducerFenced

if TYPE_CHECKING:
    from collections.abc import Callable


class TransactionGuard:
    """Says for one transactional producer what it may be asked, and remembers what ended it.

    | state | `begin` | `send`, `send_offsets`, `commit` | `abort` |
    | --- | --- | --- | --- |
    | idle | open | ValueError | does nothing |
    | open | ValueError | allowed; a commit leads to idle | leads to idle |
    | ended: fenced, refused, or an outcome is unknown | raises what ended it | raises what ended it | sends nothing |
    | closed | ValueError | ValueError | does nothing |
    """

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._is_open = False
        self._is_closed = False
        self._ended_by: BrokerError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the producer was fenced or refused, or does not know an outcome."""
        return self._ended_by is not None

    @property
    def can_abort(self) -> bool:
        """Whether there is a transaction to leave."""
        return self._is_open and not self._is_closed

    def require_idle(self) -> None:
        """Raise unless a transaction may begin."""
        self._require_usable()
        if self._is_open:
            raise ValueError(f"a transaction of {self._transactional_id} is already open")

    def require_transaction(self) -> None:
        """Raise unless a transaction is open."""
        self._require_usable()
        if not self._is_open:
            raise ValueError(f"no transaction of {self._transactional_id} is open: call begin first")

    def begun(self) -> None:
        """A transaction is open now."""
        self._is_open = True

    def finished(self) -> None:
        """The transaction was committed or aborted, or its producer has ended."""
        self._is_open = False

    def closed(self) -> None:
        """The producer is not used again."""
        self._is_closed = True

    def end(self, error: BrokerError) -> BrokerError:
        """Every later call raises `error`, which is returned."""
        self._ended_by = error
        return error

    def record_failed(self, error: BrokerError, abort: Callable[[], None]) -> None:
        """A record of the open transaction failed before its commit, so nothing of it may become visible.

        Who was fenced, refused, or waited in vain cannot know what the broker has: that producer ends, and its
        successor's first call aborts. Any other failure is known, and a transaction can be begun again after `abort`.
        """
        if isinstance(error, ProducerFenced | BrokerRefused | BrokerTimeout):
            self.end(error)
            return
        with contextlib.suppress(BrokerError):  # the caller raises the first failure
            abort()

    def _require_usable(self) -> None:
        if self._is_closed:
            raise ValueError("this producer is closed")
        if self._ended_by is not None:
            raise self._ended_by
