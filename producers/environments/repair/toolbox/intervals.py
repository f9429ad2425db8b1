"""Ranges of whole numbers, each a list of two: [start, end), the end not in it."""

from __future__ import annotations


def merged(ranges: list[list[int]]) -> list[list[int]]:
    """The same numbers as the fewest ranges, in order. Ranges that touch become one, empty ones vanish."""
    result: list[list[int]] = []
    for start, end in sorted(ranges):
        if end <= start:
            continue
        if result and start <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return result


def covered(ranges: list[list[int]]) -> int:
    """How many different numbers lie in any of the ranges."""
    return sum(end - start for start, end in merged(ranges))


def common(first: list[list[int]], second: list[list[int]]) -> list[list[int]]:
    """The numbers that lie in a range of both, as the fewest ranges, in order."""
    result = []
    for start, end in merged(first):
        for other_start, other_end in merged(second):
            low, high = max(start, other_start), min(end, other_end)
            if low < high:
                result.append([low, high])
    return result


def gaps(ranges: list[list[int]], start: int, end: int) -> list[list[int]]:
    """The numbers of [start, end) that lie in none of the ranges."""
    result = []
    place = start
    for low, high in merged(ranges):
        if low > place:
            result.append([place, min(low, end)])
        place = max(place, high)
        if place >= end:
            break
    if place < end:
        result.append([place, end])
    return [[low, high] for low, high in result if low < high]


def most_at_once(ranges: list[list[int]]) -> int:
    """The largest number of ranges that one number lies in."""
    changes = [(start, 1) for start, end in ranges if start < end]
    changes += [(end, -1) for start, end in ranges if start < end]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
