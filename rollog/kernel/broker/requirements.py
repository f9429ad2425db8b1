"""What rollog needs of a cluster, as the cluster's own list of what it can do tells it.

A broker says which requests it knows, and in which versions, before anything else is asked. Without one of those below
a client would be silent for its whole time-out, or lose what the log is there to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

oldest_tested = "3.9"
"""The oldest release line of Apache Kafka that is tested."""


@dataclass(frozen=True, slots=True)
class _Need:
    """One request of Kafka's protocol: its number, the oldest version that will do, and what rollog does with it."""

    name: str
    key: int
    version: int
    purpose: str


_needs = (
    _Need("Produce", 0, 3, "records with headers, from idempotent producers"),
    _Need("Fetch", 1, 4, "reading committed records only"),
    _Need("ListOffsets", 2, 2, "the end of what is committed"),
    _Need("Metadata", 3, 4, "asking for topics without creating them"),
    _Need("FindCoordinator", 10, 1, "transactions"),
    _Need("CreateTopics", 19, 0, "creating the topics of a run"),
    _Need("InitProducerId", 22, 0, "idempotent producers and transactions"),
    _Need("AddPartitionsToTxn", 24, 0, "transactions"),
    _Need("AddOffsetsToTxn", 25, 0, "positions of the trainer in its transactions"),
    _Need("EndTxn", 26, 0, "transactions"),
    _Need("TxnOffsetCommit", 28, 0, "positions of the trainer in its transactions"),
    _Need("DescribeConfigs", 32, 0, "checking the settings of topics"),
)


def unmet_needs(offered: Mapping[int, tuple[int, int]]) -> list[str]:
    """One phrase for each request that a cluster does not know well enough; `offered` are its versions by number."""
    unmet = []
    for need in _needs:
        _, newest = offered.get(need.key, (0, -1))
        if newest < need.version:
            found = "does not know it" if newest < 0 else f"knows it up to version {newest}"
            unmet.append(f"{need.name} version {need.version} ({need.purpose}): the broker {found}")
    return unmet


def refusal(address: str, version: str, unmet: list[str]) -> str:
    """What is said of a cluster that cannot carry a run."""
    return (
        f"the broker at {address} (Apache Kafka {version}, as its protocol shows) cannot carry a run; it lacks "
        f"{'; '.join(unmet)}. Name a cluster of Apache Kafka {oldest_tested} or later, or one with the same requests"
    )
