"""What a host's link does to a packet: it is dropped, or it arrives later. Pure: time comes in as a number.

at 200 Mbit/s and 50 ms, two packets of 1,500 bytes handed over at 0 s:
the first leaves at 0.00006 s and arrives at 0.05006 s, the second at 0.00012 s and 0.05012 s
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

_longest_queue_seconds = 0.25
"""A packet that would wait longer for its turn is dropped, as by a router whose buffer is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """State of one host's link, for each direction of it."""

    delay_seconds: float = 0.0
    """Each way: a request and its answer take twice this."""
    loss: float = 0.0
    """Share of the packets that are dropped, each way."""
    bits_per_second: float | None = None
    """Rate each way; None has no bound."""
    is_cut: bool = False
    """Whether every packet is dropped without a word, so that connections stay half open."""


@dataclass(slots=True)
class Direction:
    """One direction of a link; `free_at` is the moment from which it can take the next packet."""

    free_at: float = field(default=0.0)

    def arrival(self, now: float, num_bytes: int, conditions: Conditions, random: Random) -> float | None:
        """When a packet handed over at `now` (seconds) comes out at the other end; None where it is dropped."""
        if conditions.is_cut or (conditions.loss > 0 and random.random() < conditions.loss):
            return None
        sent = now
        if conditions.bits_per_second is not None:
            begin = max(now, self.free_at)
            if begin - now > _longest_queue_seconds:
                return None
            sent = self.free_at = begin + 8 * num_bytes / conditions.bits_per_second
        return sent + conditions.delay_seconds
