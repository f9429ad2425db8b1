"""A take-over returns a whole dispatcher, or nothing that is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.dispatcher_driver import DispatcherDriver

from producers.dispatcher.startup import TakeOver
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.errors import LedgerError
from rollog.kernel.metrics import Metrics

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Consumer, Producer


class RememberingBroker(MemoryBroker):
    """Knows the clients that were made last."""

    last_producer: Producer
    last_consumer: Consumer

    def producer(self, *, client_id: str, max_in_flight_bytes: int = 64 << 20) -> Producer:  # type: ignore[override]
        self.last_producer = super().producer(client_id=client_id, max_in_flight_bytes=max_in_flight_bytes)
        return self.last_producer

    def consumer(self, *, client_id: str, group_id: str | None = None) -> Consumer:  # type: ignore[override]
        consumer = super().consumer(client_id=client_id, group_id=group_id)
        if client_id == "dispatcher":
            self.last_consumer = consumer
        return consumer

    def require_closed(self) -> None:
        with pytest.raises(ValueError, match="closed"):
            self.last_producer.send("any", 0, b"")
        with pytest.raises(ValueError, match="closed"):
            self.last_consumer.poll(0.0)


def a_take_over(driver: DispatcherDriver) -> TakeOver:
    return TakeOver(
        settings=driver.settings,
        broker=driver.broker,
        metrics=Metrics(),
        dispatcher_id="test",
        prompts=driver.prompts,
        held_out=driver.held_out,
    )


def test_the_end_of_its_block_closes_what_a_dispatcher_holds() -> None:
    broker = RememberingBroker(block_seconds=0.0)
    driver = DispatcherDriver(memory_broker=broker)
    with a_take_over(driver).start() as dispatcher:
        dispatcher.run_once()
    broker.require_closed()


def test_a_take_over_that_fails_leaves_nothing_open() -> None:
    broker = RememberingBroker(block_seconds=0.0)
    driver = DispatcherDriver(memory_broker=broker)
    driver.lose_ledger_begin()
    with pytest.raises(LedgerError):
        a_take_over(driver).start()
    broker.require_closed()
