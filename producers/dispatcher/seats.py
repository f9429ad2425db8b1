"""Replicas that are seats of one episode: which attempts one task orders. Pure.

Replicas i*k to i*k + k - 1 of a group are the k seats of one episode. They go out in one task, so they meet at one
worker whatever is lost, fenced or revoked meanwhile. A seat that has to be made again, while others of its episode have
their samples, goes out alone: its worker plays the whole episode, and records that seat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from producers.dispatcher.group_tracker import Wanted


def tasks_of(attempts: Iterable[Wanted], num_seats: int) -> list[list[Wanted]]:
    """The attempts that each task orders: neighbouring seats of one episode, as far as they are equal attempts.

    `attempts` are of one group, in order of replica. A task has one attempt number and one range of replicas: seats
    with another number, or with a present one between them, cannot go along.

    Example with 3 seats: attempt 1 at replicas 0, 1 and 2 is one task, attempt 1 at 3 and 5 are two, attempt 2 at 6 and
    attempt 1 at 7 are two.
    """
    tasks: list[list[Wanted]] = []
    for wanted in attempts:
        if tasks and _goes_along(tasks[-1][-1], wanted, num_seats):
            tasks[-1].append(wanted)
        else:
            tasks.append([wanted])
    return tasks


def _goes_along(before: Wanted, wanted: Wanted, num_seats: int) -> bool:
    is_next = wanted.replica == before.replica + 1 and wanted.attempt == before.attempt
    return is_next and wanted.replica // num_seats == before.replica // num_seats
