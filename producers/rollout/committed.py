"""What the ledger says: which versions it made, for a notice of another one is nobody's, and whether it is closed.

Consumes `steps`, by one consumer on a thread of its own: only what came since the last question, and at first only the
end of a long ledger.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.errors import BrokerError, LedgerError, NotAuthorized
from rollog.kernel.logs import get_logger
from rollog.rules.ledger_chain import LedgerChain, chain_within
from schemas import LedgerKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rollog.kernel.broker.ports import Broker, Consumer, Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import WeightVersion

log = get_logger("rollout")

_first_window = 256
"""Offsets before the end of the ledger that are looked at first."""
_num_looks = 8
_look_seconds = 0.01
"""Before the second look, twice as long before each further one: a transaction becomes visible on one topic a little
before the other, so a notice may be there before its step."""


class CommittedVersions:
    """Answers for one worker; one question at a time. It connects with the first one."""

    def __init__(self, broker: Broker, topics: RunTopics) -> None:
        self._broker = broker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="versions")
        self._consumer: Consumer | None = None
        self._place = TopicPartition(topics.steps, 0)
        self._chain: LedgerChain | None = None
        self._position = 0
        self._versions: dict[int, str] = {}
        self._is_closed = False

    async def is_foreign(self, notice: WeightVersion) -> bool:
        """Whether the ledger has begun and, looked at for two seconds, has no such version of these weights.

        False where that cannot be told: the broker is silent, or the ledger broken, which its readers say.
        """
        try:
            for look in range(_num_looks):
                await self._call(self._read_on)
                if not self._versions or self._versions.get(notice.version) == notice.sha256:
                    return False
                await asyncio.sleep(_look_seconds * 2**look)
            if 0 not in self._versions and notice.version < min(self._versions):
                self._chain, self._position = LedgerChain(), 0
                await self._call(self._read_on)
        except NotAuthorized:
            raise
        except (BrokerError, LedgerError) as error:
            log.warning("the ledger cannot be asked for a version", version=notice.version, error=str(error))
            return False
        return self._versions.get(notice.version) != notice.sha256

    async def is_closed(self) -> bool:
        """Whether the ledger's newest record closes the run, however many strangers stand behind it.

        False where the ledger is broken, which its readers say. Raises BrokerError.
        """
        try:
            await self._call(self._read_on)
        except LedgerError as error:
            log.warning("the ledger cannot be asked whether it is closed", error=str(error))
            return False
        return self._is_closed

    async def close(self) -> None:
        """Close the consumer, if there is one, and end its thread."""
        await self._call(self._disconnect)  # behind a question that nobody waits for any more
        self._thread.shutdown()

    async def _call(self, function: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _disconnect(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _read_on(self) -> None:
        if self._consumer is None:
            self._consumer = self._broker.consumer(client_id="ledger-versions")
        end = self._consumer.end_offsets([self._place])[self._place]
        beginning = self._consumer.beginning_offsets([self._place])[self._place]
        begin = max(beginning, self._position if self._chain else end - _first_window)
        records = self._records(begin, end)
        if self._chain is None and begin > beginning:
            self._chain = chain_within(records)
        if self._chain is None:
            self._chain = LedgerChain()
            records = records if begin == beginning else self._records(beginning, end)
        self._fold(records)
        self._position = max(self._position, end)

    def _records(self, begin: int, end: int) -> list[Record]:
        assert self._consumer is not None, "it connects before it reads"
        return list(read_until(self._consumer, {self._place: begin}, {self._place: end}))

    def _fold(self, records: Iterable[Record]) -> None:
        assert self._chain is not None
        for record in records:
            found = self._chain.take(record)
            if found is not None:
                self._is_closed = found[0].kind is LedgerKind.CLOSE
            weights = None if found is None else getattr(found[0].body, "weights_sha256", None)
            if found is not None and weights is not None:
                self._versions[found[0].version] = weights
