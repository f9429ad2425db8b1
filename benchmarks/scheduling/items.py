"""What `rollog bench scheduling` can measure, under which number."""

from __future__ import annotations

from enum import IntEnum


class Item(IntEnum):
    """One question, answered by figures of its own."""

    QUEUE = 1
    REPLICATION = 2
    TRAINING = 3
    SCALING = 4
    PROTECTION = 6
    SLOW_WORKER = 7


summaries = {
    Item.QUEUE: "queue scheduling and redundant prompts",
    Item.REPLICATION: "prompt replication",
    Item.TRAINING: "asynchronous training against synchronous",
    Item.SCALING: "scaling over workers, and what the dispatcher costs",
    Item.PROTECTION: "protection of slow prompts",
    Item.SLOW_WORKER: "one worker that is 20 times slower",
}
measured_by_default = (Item.QUEUE, Item.REPLICATION)
