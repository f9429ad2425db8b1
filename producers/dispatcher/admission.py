"""How many groups may be open when a new one is issued (I9)."""

from __future__ import annotations

import math

from rollog.rules.freshness import exact


def max_open_groups(
    *,
    alpha: float,
    groups_per_batch: int,
    steps_left: int,
    redundant_groups: int,
    num_early_filtered: int,
) -> int:
    """The bound on groups issued and not closed in the ledger, the new one included.

    The queue holds at most floor((1 + alpha) B) groups and never more than the run still needs; redundant groups come
    on top, and groups that are known to be filtered though the ledger has not closed them yet. Of these no more
    than all the others count: while no ledger record is written, what is open stays bounded, however much is filtered.
    """
    window = min(math.floor((1 + exact(alpha)) * groups_per_batch), steps_left * groups_per_batch)
    in_queue = window + redundant_groups
    return in_queue + min(num_early_filtered, in_queue) if steps_left > 0 else 0
