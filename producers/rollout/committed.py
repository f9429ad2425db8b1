"""Which versions the ledger made: a notice of another one is nobody's.

Consumes `steps`, by a consumer of its own each time it is asked, on a thread; only what came since the last time, and
at first only the end of a long ledger.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.errors import BrokerError, LedgerError
from rollog.kernel.logs import get_logger
from rollog.rules.ledger_chain import LedgerChain, chain_within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollog.kernel.broker.ports import Broker, Record
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
    """Answers for one worker; one question at a time."""

    def __init__(self, broker: Broker, topics: RunTopics) -> None:
        self._broker = broker
        self._place = TopicPartition(topics.steps, 0)
        self._chain: LedgerChain | None = None
        self._position = 0
        self._versions: dict[int, str] = {}

    async def is_foreign(self, notice: WeightVersion) -> bool:
        """Whether the ledger has begun and, looked at for two seconds, has no such version of these weights.

        False where that cannot be told: the broker is silent, or the ledger broken, which its readers say.
        """
        try:
            for look in range(_num_looks):
                await asyncio.to_thread(self._read_on)
                if not self._versions or self._versions.get(notice.version) == notice.sha256:
                    return False
                await asyncio.sleep(_look_seconds * 2**look)
            if 0 not in self._versions and notice.version < min(self._versions):
                self._chain, self._position = LedgerChain(), 0
                await asyncio.to_thread(self._read_on)
        except (BrokerError, LedgerError) as error:
            log.warning("the ledger cannot be asked for a version", version=notice.version, error=str(error))
            return False
        return self._versions.get(notice.version) != notice.sha256

    def _read_on(self) -> None:
        with self._broker.consumer(client_id="ledger-versions") as consumer:
            end = consumer.end_offsets([self._place])[self._place]
            beginning = consumer.beginning_offsets([self._place])[self._place]
            begin = max(beginning, self._position if self._chain else end - _first_window)
            records = list(read_until(consumer, {self._place: begin}, {self._place: end}))
            if self._chain is None and begin > beginning:
                self._chain = chain_within(records)
            if self._chain is None:
                self._chain = LedgerChain()
                records = list(read_until(consumer, {self._place: beginning}, {self._place: end}))
        self._fold(records)
        self._position = max(self._position, end)

    def _fold(self, records: Iterable[Record]) -> None:
        assert self._chain is not None
        for record in records:
            found = self._chain.take(record)
            weights = None if found is None else getattr(found[0].body, "weights_sha256", None)
            if found is not None and weights is not None:
                self._versions[found[0].version] = weights
