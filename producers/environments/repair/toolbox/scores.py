"""Scores: ranks, middles, averages of lists of whole numbers."""

from __future__ import annotations


def doubled_median(values: list[int]) -> int:
    """Twice the middle value, which for an even count is the sum of the two in the middle. At least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return 2 * ordered[middle]
    return ordered[middle - 1] + ordered[middle]


def most_frequent(values: list[int]) -> list[int]:
    """The values that come most often, in rising order."""
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    most = max(counts.values(), default=0)
    return sorted(value for value, count in counts.items() if count == most)


def ranks(values: list[int]) -> list[int]:
    """For each value its place, 1 for the largest; equal ones share a place, and the places after it stay empty."""
    return [1 + sum(1 for other in values if other > value) for value in values]


def moving_sums(values: list[int], width: int) -> list[int]:
    """The sums of each `width` neighbours; none where there are fewer values."""
    if width > len(values):
        return []
    total = sum(values[:width])
    sums = [total]
    for index in range(width, len(values)):
        total += values[index] - values[index - width]
        sums.append(total)
    return sums


def percentile(values: list[int], percent: int) -> int:
    """The smallest value for which at least so many percent, 1 to 100, of the values are not larger."""
    ordered = sorted(values)
    place = -(-len(ordered) * percent // 100)
    return ordered[place - 1]


def histogram(values: list[int], start: int, width: int, num_bins: int) -> list[int]:
    """How many values lie in each bin of this width, the first at `start`; values outside are left out."""
    bins = [0] * num_bins
    for value in values:
        index = (value - start) // width
        if 0 <= index < num_bins:
            bins[index] += 1
    return bins
