"""Notices that a broker which was connected to refuses this client now, as after its password was changed.

A client library takes that for a broker that is away, and tries again until the time of a call is over, or for ever.
So whoever waits for an answer asks here meanwhile.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from rollog.kernel.broker.preflight import refusal
from rollog.kernel.errors import BrokerError, BrokerRefused, BrokerUnreachable, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.security import SecuritySettings

_Result = TypeVar("_Result")

look_seconds = 0.5
"""How often whoever waits asks here."""
_silence_seconds = 1.0
_pause_seconds = 5.0
_says_little = frozenset({BrokerError, BrokerRefused, BrokerUnreachable})
"""Classes of errors that may be about the connection alone; each other one says what it is about."""


class RefusalWatch:
    """Asks the broker, beside the caller, once a client has heard nothing for a second; then every 5 s.

    In plain text without users nothing can be refused, and nothing is asked.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        security: SecuritySettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._security = security
        self._is_needed = security.protocol.has_tls or security.protocol.has_sasl
        self._clock = clock
        self._ask_at: float | None = None
        self._thread: threading.Thread | None = None
        self._found: BrokerRefused | None = None

    def heard(self) -> None:
        """The client has a connection, or an answer."""
        self._ask_at = None

    def silent(self) -> None:
        """The client has none. Raises BrokerRefused once the broker was found to refuse it. Does not block."""
        if not self._is_needed:
            return
        if self._found is not None:
            raise self._found
        now = self._clock()
        if self._ask_at is None:
            self._ask_at = now + _silence_seconds
        if now < self._ask_at or (self._thread is not None and self._thread.is_alive()):
            return
        self._ask_at = now + _pause_seconds
        self._thread = threading.Thread(target=self._ask, name="refusal-watch", daemon=True)
        self._thread.start()

    def during(self, call: Callable[[], _Result]) -> _Result:
        """What `call` returns or raises, unless it waits and the broker is found to refuse this client meanwhile.

        Then BrokerRefused is raised, and the call goes on beside the caller until its own time is over.
        """
        if not self._is_needed:
            return call()
        answer = _aside(call)
        while not wait([answer], look_seconds).done:
            self.silent()
        try:
            found = answer.result()
        except BrokerError as error:
            named = self.named(error)
            if named is error:
                raise
            raise named from error
        self.heard()
        return found

    def named(self, error: BrokerError) -> BrokerError:
        """The refusal in place of what a library says of a connection that it cannot make; else `error` itself.

        A library tells neither cause nor remedy. May take a few seconds.
        """
        if type(error) not in _says_little:
            return error
        if self._is_needed and self._found is None:
            self._ask()
        return self._found or error

    def _ask(self) -> None:
        try:
            self._found = refusal(self._bootstrap_servers, self._security)
        except ConfigError as error:  # a file of these settings is gone
            self._found = BrokerRefused(str(error))


def _aside(call: Callable[[], _Result]) -> Future[_Result]:
    """What becomes of a call in a thread that keeps no process from its end."""
    answer: Future[_Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            answer.set_exception(error)

    threading.Thread(target=run, name="watched-call", daemon=True).start()
    return answer
