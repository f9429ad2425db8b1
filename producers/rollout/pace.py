"""When a worker says how it stands. Pure: the caller gives the time."""

from __future__ import annotations

_soonest_seconds = 0.1
"""Least time between two heartbeats that are written for a change."""

_share_of_slots = 8
"""A change is told when it concerns one slot in so many."""


class HeartbeatPace:
    """At every interval, and between two as soon as the number of scored rollouts has changed much.

    The dispatcher learns from heartbeats alone that a slot was freed before its sample: what has not been told leaves
    slots empty once the prefetched tasks are used up. A change of less than an eighth of the slots can wait. So about 8
    heartbeats more are written in the time of one rollout, 10 in a second at most, and few where rewards are quick.
    """

    def __init__(self, *, every_seconds: float, capacity: int) -> None:
        self._every_seconds = every_seconds
        self._least_change = max(1, capacity // _share_of_slots)
        self._told_at = float("-inf")
        self._num_told = 0

    def told(self, now: float, num_scoring: int) -> None:
        """A heartbeat is written."""
        self._told_at, self._num_told = now, num_scoring

    def is_due(self, now: float, num_scoring: int) -> bool:
        """Whether the next heartbeat is to be written."""
        seconds = now - self._told_at
        has_changed = abs(num_scoring - self._num_told) >= self._least_change
        return seconds >= self._every_seconds or (has_changed and seconds >= _soonest_seconds)
