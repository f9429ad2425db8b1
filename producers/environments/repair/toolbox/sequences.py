"""Lists of numbers: cutting them up, counting, looking for order."""

from __future__ import annotations


def chunks(values: list[int], size: int) -> list[list[int]]:
    """The values in lists of `size`, the last one perhaps shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def runs(values: list[int]) -> list[list[int]]:
    """Each value with how often it comes in a row: [5, 5, 7] gives [[5, 2], [7, 1]]."""
    result: list[list[int]] = []
    for value in values:
        if result and result[-1][0] == value:
            result[-1][1] += 1
        else:
            result.append([value, 1])
    return result


def without_doubles(values: list[int], most: int) -> list[int]:
    """The values in their order, each at most `most` times."""
    seen: dict[int, int] = {}
    result = []
    for value in values:
        seen[value] = seen.get(value, 0) + 1
        if seen[value] <= most:
            result.append(value)
    return result


def shifted(values: list[int], places: int) -> list[int]:
    """The values moved to the right by so many places, to the left by negative ones; what leaves comes in again."""
    if not values:
        return []
    cut = -places % len(values)
    return values[cut:] + values[:cut]


def longest_rise(values: list[int]) -> int:
    """The length of the longest stretch of neighbours in which each is larger than the one before."""
    longest = length = 0
    for index, value in enumerate(values):
        length = length + 1 if index > 0 and value > values[index - 1] else 1
        longest = max(longest, length)
    return longest


def best_stretch(values: list[int]) -> list[int]:
    """[sum, start, end) of the neighbours with the largest sum, the first of equal ones; [0, 0, 0] of none."""
    best = [0, 0, 0]
    total = start = 0
    for index, value in enumerate(values):
        if total <= 0:
            total, start = 0, index
        total += value
        if total > best[0]:
            best = [total, start, index + 1]
    return best
