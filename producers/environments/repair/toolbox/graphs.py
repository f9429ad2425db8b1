"""Graphs of numbered nodes, 0 to n - 1, and directed edges, each a list [from, to]."""

from __future__ import annotations


def following(num_nodes: int, edges: list[list[int]]) -> list[list[int]]:
    """For each node the nodes that an edge leads to, in order, each once."""
    targets: list[set[int]] = [set() for _ in range(num_nodes)]
    for start, end in edges:
        targets[start].add(end)
    return [sorted(each) for each in targets]


def distances(num_nodes: int, edges: list[list[int]], start: int) -> list[int]:
    """For each node the fewest edges that lead there from `start`; -1 where none do."""
    targets = following(num_nodes, edges)
    result = [-1] * num_nodes
    result[start] = 0
    waiting = [start]
    while waiting:
        node = waiting.pop(0)
        for target in targets[node]:
            if result[target] < 0:
                result[target] = result[node] + 1
                waiting.append(target)
    return result


def in_order(num_nodes: int, edges: list[list[int]]) -> list[int]:
    """All nodes, each after those with an edge to it, the smallest first where there is a choice; [] in a circle."""
    targets = following(num_nodes, edges)
    num_before = [0] * num_nodes
    for each in targets:
        for target in each:
            num_before[target] += 1
    free = [node for node in range(num_nodes) if num_before[node] == 0]
    result = []
    while free:
        node = min(free)
        free.remove(node)
        result.append(node)
        for target in targets[node]:
            num_before[target] -= 1
            if num_before[target] == 0:
                free.append(target)
    return result if len(result) == num_nodes else []


def num_parts(num_nodes: int, edges: list[list[int]]) -> int:
    """How many parts are not connected to each other, whatever the direction of the edges."""
    leader = list(range(num_nodes))
    count = num_nodes
    for start, end in edges:
        one, other = leader[start], leader[end]
        if one != other:
            count -= 1
            leader = [one if each == other else each for each in leader]
    return count


def num_paths(num_nodes: int, edges: list[list[int]], length: int) -> int:
    """How many paths of exactly `length` edges there are, from any node to any; edges named twice count once."""
    targets = following(num_nodes, edges)
    ending = [1] * num_nodes
    for _ in range(length):
        ending = [sum(ending[target] for target in each) for each in targets]
    return sum(ending)
