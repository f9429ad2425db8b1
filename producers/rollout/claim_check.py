"""Large samples before they are sent: arrays and texts into the store, the name of the object into the record.

The object is durable before the record is sent, so whoever reads the record finds it. While the store is silent, or
has no room, the sample waits: nothing finished is lost by it, and since its task stays open and its place taken, the
worker takes on no more than these. A worker that ends meanwhile loses what waits, and its tasks are ordered again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from producers.rollout.publishing import failed, too_large
from rollog.kernel.errors import PayloadStoreSilent
from rollog.kernel.logs import get_logger
from schemas import SchemaError, Status
from schemas.claim_check import num_payload_bytes, split

if TYPE_CHECKING:
    from rollog.kernel.payloads import PayloadStore
    from rollog.settings.run import BrokerConfig
    from schemas import Sample

log = get_logger("rollout")

_first_pause_seconds = 0.2
_longest_pause_seconds = 15.0
_most_writes_at_once = 4


class ClaimCheck:
    """Puts the arrays of large finished samples of one worker into the store."""

    def __init__(self, store: PayloadStore, broker: BrokerConfig) -> None:
        self._store = store
        self._inline_bytes = broker.inline_sample_bytes
        self._max_bytes = broker.max_payload_bytes
        self._writes = asyncio.Semaphore(_most_writes_at_once)

    async def checked(self, sample: Sample) -> Sample:
        """The sample as its record is to hold it: itself, one that names its object, or a failed one: too_large.

        Returns when the object is durable, however long the store is silent.
        """
        if sample.status is not Status.FINISHED or num_payload_bytes(sample) <= self._inline_bytes:
            return sample
        try:
            record, data = await asyncio.to_thread(split, sample)
        except SchemaError:
            return sample  # the record's writer refuses it and says why
        if len(data) > self._max_bytes:
            message = (
                f"the arrays of the sample have {len(data)} bytes, more than broker.max_payload_bytes = "
                f"{self._max_bytes}; raise it, or shorten prompts or sampling.max_tokens"
            )
            return failed(sample, too_large, message)
        await self._store_durably(sample.sample_id, data)
        return record

    async def _store_durably(self, sample_id: str, data: bytes) -> None:
        pause = _first_pause_seconds
        while True:
            try:
                async with self._writes:
                    await asyncio.to_thread(self._store.put, data)
            except PayloadStoreSilent as error:
                log.warning(
                    "sample waits for the store", sample=sample_id, error=str(error), retry_seconds=pause
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _longest_pause_seconds)
            else:
                return
