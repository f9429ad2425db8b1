"""The store that is not on this disk: who shares its channel, what is counted, and how a rate is held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness.random_model import shapes
from benchmarks.weights.elsewhere import Channel, store_elsewhere
from benchmarks.weights.large_engines import HoldingEngine
from benchmarks.weights.throttled import measure_throttled
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Clock:
    """Time that passes in sleep alone."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def a_channel(bytes_per_second: float | None, clock: Clock) -> Channel:
    return Channel(bytes_per_second, clock=clock, sleep=clock.sleep)


def test_reads_and_writes_together_take_the_time_of_the_rate() -> None:
    clock = Clock()
    channel = a_channel(1_000_000, clock)
    channel.write(2_000_000)
    channel.read(1_000_000)
    assert clock.now == pytest.approx(3.0)
    assert (channel.num_written, channel.num_read) == (2_000_000, 1_000_000)
    assert max(clock.slept) <= 0.27, "it is soon the other's turn"


def test_what_was_not_used_is_not_saved_up() -> None:
    clock = Clock()
    channel = a_channel(1_000_000, clock)
    clock.now = 100.0
    channel.read(500_000)
    assert clock.now == pytest.approx(100.5)


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    channel = a_channel(None, clock)
    channel.write(10**12)
    assert clock.slept == []
    assert channel.num_written == 10**12


def test_all_stores_of_an_address_share_its_channel_and_bytes_are_counted(tmp_path: Path) -> None:
    channel = Channel()
    address = store_elsewhere(tmp_path / "store", channel)
    engine = HoldingEngine(shapes["tiny"])
    engine.start("none")
    writer, reader = WeightsStore(address), WeightsStore(address)
    assert not writer.is_local
    notice = writer.publish_tensors(0, engine.export_weights)
    assert channel.num_written == notice.stored_bytes
    path = reader.fetch(notice, tmp_path / "here")
    assert path.parent == tmp_path / "here"
    assert channel.num_read == notice.stored_bytes
    assert WeightsStore(store_elsewhere(tmp_path / "other", Channel())).names() == []


def test_a_slow_store_is_measured_with_patches_and_in_full(tmp_path: Path) -> None:
    # A full form takes three steps each way, a patch a tenth of one.
    figures = measure_throttled(
        shape=shapes["tiny"],
        home=tmp_path,
        seed=0,
        on_progress=print,
        step_seconds=0.1,
        bits_per_second=8 * 217_000 / 0.3,
        num_steps=18,
        num_full_steps=4,
    )
    by_name = {figure.name.removeprefix("weights.throttled."): figure for figure in figures}
    assert by_name.keys() == {"patches", "between", "full"}
    assert [by_name[name].target for name in ("patches", "between", "full")] == [0.9, 0.9, None]
    assert by_name["full"].value < by_name["between"].value
    assert by_name["full"].ideal == pytest.approx(1 / 3, rel=0.05)
    assert by_name["between"].num_draws == 13
    assert list(tmp_path.iterdir()) == [], "nothing of runs and stores is left"
