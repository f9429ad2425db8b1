"""What dispatcher and trainer say of themselves while they wait: to their log, their metric, and in heartbeats.

The loop looks at the clock every turn; a thread writes the newest status to `workers` every 2 s, so that a step of
minutes is not taken for death. It is for people: a heartbeat that cannot be written is logged, and changes nothing.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from rollog.kernel.broker.one_at_a_time import OneAtATime
from rollog.kernel.errors import BrokerError
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from rollog.rules.standing_still import Pace, Teller, Told, least_seconds
from schemas import RoleStatus
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from prometheus_client import Gauge

    from rollog.kernel.broker.ports import Broker, Producer
    from rollog.rules.standing_still import Cause
    from schemas import RunRole

heartbeat_seconds = 2.0
look_seconds = 1.0
_leave_seconds = 5.0
_retry_seconds = 10.0

_log = get_logger("heartbeats")


class RoleVoice:
    """How one role stands. `status` is replaced as a whole, so another thread may read it at any time."""

    def __init__(
        self,
        role: RunRole,
        role_id: str,
        *,
        epoch: int,
        version: int,
        clock: Callable[[], float],
        gauge: Gauge,
    ) -> None:
        now = clock()
        self.status = RoleStatus(
            role=role,
            role_id=role_id,
            epoch=epoch,
            version=version,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        self.pace = Pace(now)
        self._teller = Teller()
        self._looked_at = now
        self._log = get_logger(role.value)
        # Asked for when it is scraped: a loop that is busy for minutes could not set it.
        gauge.set_function(lambda: self.pace.still_seconds(clock()))

    def stepped(self, version: int, now: float) -> None:
        """A step made this version, or genesis made version 0."""
        if version > 0:
            self.pace.step(now)
        else:
            self.pace.begins(now)
        self.status = replace(self.status, version=version, waits_on="", waiting_for="")
        self._tell(now, None)

    def busy(self, cause: Cause) -> None:
        """The loop goes away to do this, and says nothing meanwhile."""
        self._say(cause)

    def look(self, version: int, now: float, cause: Callable[[], Cause]) -> None:
        """Notice a step, or say what is waited for; looks closer once a second only."""
        if version != self.status.version:
            self.stepped(version, now)
            return
        if now - self._looked_at < look_seconds:
            return
        self._looked_at = now
        found = cause() if self.pace.waited(now) >= least_seconds else None
        self._say(found)
        self._tell(now, found)

    def ends(self, now: float) -> None:
        """The run is over: nothing is waited for any more."""
        self.pace.ends(now)
        self._say(None)

    def _say(self, cause: Cause | None) -> None:
        self.status = replace(
            self.status,
            waits_on="" if cause is None else cause.waits_on,
            waiting_for="" if cause is None else cause.sentence,
        )

    def _tell(self, now: float, cause: Cause | None) -> None:
        told = self._teller.due(self.pace.still_seconds(now) > 0.0, now)
        if told is Told.STANDS_STILL and cause is not None:
            self._log.warning(
                told.value,
                seconds_without_a_step=round(self.pace.waited(now), 1),
                usual_seconds=self.pace.usual_seconds,
                waiting_for=cause.sentence,
            )
        elif told is Told.GOES_ON:
            self._log.info(told.value, version=self.status.version)


class StartingRole:
    """What a role says before it can work: the phase of its start. Another thread may read `status` at any time."""

    def __init__(self, role: RunRole, role_id: str = "") -> None:
        self.status = RoleStatus(role=role, role_id=role_id, host=socket.gethostname(), pid=os.getpid())
        self._log = get_logger(role.value)

    def enters(self, phase: str) -> None:
        """This is done from now on."""
        self._log.info(phase)
        self.status = replace(self.status, phase=phase)


class RoleHeartbeats(Component):
    """Writes a role's status under the role's name every 2 s, by a thread of its own; a tombstone at a clean end.

    While the broker is away one heartbeat waits and the others are left out: nothing grows.
    """

    def __init__(
        self,
        broker: Broker,
        workers_topic: str,
        status: Callable[[], RoleStatus],
        *,
        every_seconds: float = heartbeat_seconds,
    ) -> None:
        self._topic = workers_topic
        self._status = status
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(broker,), name="role-heartbeats")
        self._leaves = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Who was overtaken must not write the tombstone of its successor, who has the same key.
        self._leaves = exc_type is None
        self.close()

    def speak_for(self, status: Callable[[], RoleStatus]) -> None:
        """Write this status from now on."""
        self._status = status

    def close(self) -> None:
        """Write nothing more, and end the thread. Idempotent."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self, broker: Broker) -> None:
        while not self._ended.is_set():
            try:
                self._write_to_the_end(broker)
            except BrokerError as error:
                _log.warning("a heartbeat was not written; the run goes on without", error=error)
                self._ended.wait(_retry_seconds)

    def _write_to_the_end(self, broker: Broker) -> None:
        with broker.producer(client_id=f"{self._status().role}-heartbeats") as producer:
            one_at_a_time = OneAtATime(producer)
            while not self._ended.is_set():
                self._write(one_at_a_time)
                self._ended.wait(self._every_seconds)
            if self._leaves:
                self._leave(producer)

    def _write(self, one_at_a_time: OneAtATime) -> None:
        status = self._status()
        one_at_a_time.send(
            self._topic, 0, encode(status), key=status.role.encode(), headers=headers_of(status)
        )

    def _leave(self, producer: Producer) -> None:
        key = self._status().role.encode()
        producer.send(self._topic, 0, None, key=key).offset(_leave_seconds)
