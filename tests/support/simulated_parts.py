"""What a simulated run is made of: a broker for one thread, and a slow producer."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.errors import BrokerTimeout
from rollog.kernel.lifecycle import Component

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.broker.ports import Delivery, Headers, Producer


class Killed(Exception):
    """The process that ran here ended at this point."""


class InstantBroker(MemoryBroker):
    """A broker whose clients all live in one thread: what does not hold now never will, so nobody waits.

    `cut` ends the trainer in its next commit, before or after the commit takes effect.
    """

    def __init__(self) -> None:
        super().__init__(block_seconds=0.0)
        self.cut: str | None = None

    def wait_for(self, is_met: Callable[[], bool], timeout_seconds: float) -> bool:
        del timeout_seconds
        with self.condition:
            return is_met()

    def settle_transaction(self, transactional_id: str, epoch: int, *, is_committed: bool) -> None:
        self.holder(transactional_id, epoch)
        cut = None
        if is_committed and transactional_id.endswith(".trainer"):
            cut, self.cut = self.cut, None
        if cut == "before":
            raise Killed
        super().settle_transaction(transactional_id, epoch, is_committed=is_committed)
        if cut == "after":
            raise Killed


class SlowDelivery:
    """The fate of a record that may still be on its way."""

    def __init__(self) -> None:
        self.inner: Delivery | None = None

    def done(self) -> bool:
        return self.inner is not None and self.inner.done()

    def offset(self, timeout_seconds: float) -> int:
        if self.inner is None:
            raise BrokerTimeout("still on its way")
        return self.inner.offset(timeout_seconds)


class SlowProducer(Component):
    """A producer whose records, while `is_slow`, stay on their way until `deliver`; order is kept per partition.

    They may arrive after the process that sent them has died.
    """

    def __init__(self, inner: Producer) -> None:
        self._inner = inner
        self._on_their_way: dict[tuple[str, int], deque[tuple[SlowDelivery, dict[str, Any]]]] = {}
        self.is_slow = False

    @property
    def num_on_their_way(self) -> int:
        return sum(map(len, self._on_their_way.values()))

    def values_on_their_way(self) -> list[bytes | None]:
        return [sent["value"] for queue in self._on_their_way.values() for _, sent in queue]

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> SlowDelivery:
        delivery = SlowDelivery()
        queue = self._on_their_way.setdefault((topic, partition), deque())
        queue.append((delivery, {"value": value, "key": key, "headers": headers}))
        if not self.is_slow:
            self._deliver_all((topic, partition))
        return delivery

    def deliver(self, which: int) -> None:
        """Let everything arrive that is on its way to one partition."""
        waiting = sorted(place for place, queue in self._on_their_way.items() if queue)
        if waiting:
            self._deliver_all(waiting[which % len(waiting)])

    def flush(self, timeout_seconds: float) -> None:
        for place in list(self._on_their_way):
            self._deliver_all(place)
        self._inner.flush(timeout_seconds)

    def lose(self) -> None:
        """The sender died, and nothing of what was on its way arrives."""
        self._on_their_way.clear()

    def close(self) -> None:
        self._inner.close()

    def _deliver_all(self, place: tuple[str, int]) -> None:
        queue = self._on_their_way[place]
        while queue:
            delivery, sent = queue.popleft()
            delivery.inner = self._inner.send(*place, **sent)
