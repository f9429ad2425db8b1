"""Grids: lists of rows of one length, at least one cell."""

from __future__ import annotations


def turned(grid: list[list[int]]) -> list[list[int]]:
    """The grid turned by a quarter to the right: its first row becomes the last column."""
    return [[row[column] for row in reversed(grid)] for column in range(len(grid[0]))]


def spiral(grid: list[list[int]]) -> list[int]:
    """The cells from the upper left corner to the right, and round and round to the middle."""
    top, bottom, left, right = 0, len(grid) - 1, 0, len(grid[0]) - 1
    cells: list[int] = []
    while top <= bottom and left <= right:
        cells += grid[top][left : right + 1]
        cells += [grid[row][right] for row in range(top + 1, bottom + 1)]
        if top < bottom:
            cells += [grid[bottom][column] for column in range(right - 1, left - 1, -1)]
        if left < right:
            cells += [grid[row][left] for row in range(bottom - 1, top, -1)]
        top, bottom, left, right = top + 1, bottom - 1, left + 1, right - 1
    return cells


def num_neighbours(grid: list[list[int]], row: int, column: int) -> int:
    """How many of the up to eight cells around this one are not 0."""
    count = 0
    for i in range(max(0, row - 1), min(len(grid), row + 2)):
        for j in range(max(0, column - 1), min(len(grid[0]), column + 2)):
            if (i, j) != (row, column) and grid[i][j] != 0:
                count += 1
    return count


def next_generation(grid: list[list[int]]) -> list[list[int]]:
    """A step of life: a cell of 1 stays with two or three neighbours, one of 0 becomes 1 with three."""
    result = []
    for i, row in enumerate(grid):
        counts = [num_neighbours(grid, i, j) for j in range(len(row))]
        result.append(
            [int(count == 3 or (cell == 1 and count == 2)) for cell, count in zip(row, counts, strict=True)]
        )
    return result


def largest_area(grid: list[list[int]]) -> int:
    """The number of cells in the largest area of cells that are not 0 and touch by their sides."""
    seen: set[tuple[int, int]] = set()
    largest = 0
    for start in [(i, j) for i in range(len(grid)) for j in range(len(grid[0]))]:
        area, waiting = 0, [start]
        while waiting:
            i, j = waiting.pop()
            inside = 0 <= i < len(grid) and 0 <= j < len(grid[0])
            if not inside or (i, j) in seen or grid[i][j] == 0:
                continue
            seen.add((i, j))
            area += 1
            waiting += [(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)]
        largest = max(largest, area)
    return largest
