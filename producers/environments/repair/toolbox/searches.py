"""Looking things up in lists of numbers."""

from __future__ import annotations


def insert_place(ordered: list[int], value: int) -> int:
    """Where the value goes in a rising list, before those equal to it."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


def count_between(ordered: list[int], low: int, high: int) -> int:
    """How many values of a rising list are from `low` to `high`, both included."""
    return max(0, insert_place(ordered, high + 1) - insert_place(ordered, low))


def woven(first: list[int], second: list[int]) -> list[int]:
    """Two rising lists as one."""
    result = []
    i = j = 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            result.append(first[i])
            i += 1
        else:
            result.append(second[j])
            j += 1
    return result + first[i:] + second[j:]


def pairs_with_sum(values: list[int], total: int) -> list[list[int]]:
    """The different pairs [a, b] of two values of the list, a <= b, that add up to the total, in order."""
    found = set()
    for index, value in enumerate(values):
        for other in values[index + 1 :]:
            if value + other == total:
                found.add((min(value, other), max(value, other)))
    return [list(pair) for pair in sorted(found)]


def longest_common(first: list[int], second: list[int]) -> int:
    """The length of the longest list that comes of both by leaving values out."""
    row = [0] * (len(second) + 1)
    for value in first:
        before = row[:]
        for j, other in enumerate(second):
            row[j + 1] = before[j] + 1 if value == other else max(row[j], before[j + 1])
    return row[-1]


def peak_places(values: list[int]) -> list[int]:
    """The places of values that are larger than their neighbours; at an end the one neighbour counts."""
    places = []
    for index, value in enumerate(values):
        over_left = index == 0 or value > values[index - 1]
        over_right = index == len(values) - 1 or value > values[index + 1]
        if over_left and over_right:
            places.append(index)
    return places
