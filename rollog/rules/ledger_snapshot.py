"""The fold of the ledger as plain data, and back: what a role keeps so that it need not read the ledger from its start.

Pure. Its size goes with what is open, but for 32 bytes a version (the weights' sha256) and about a byte a group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any

from rollog.rules.alpha_control import TakenStep
from rollog.rules.group_outcomes import GroupOutcomes
from rollog.rules.ledger_state import LedgerState
from rollog.rules.limits import ReplicaTally
from rollog.rules.reward_reach import RewardReach
from schemas import Disposition


def ledger_to_plain(ledger: LedgerState) -> dict[str, Any]:
    """A ledger state as JSON has it."""
    return {
        "version": ledger.version,
        "alpha": ledger.alpha,
        "taken_steps": [asdict(taken) for taken in ledger.taken_steps],
        "next_sequence": ledger.next_sequence,
        "head": ledger.head.hex(),
        "revision": ledger.revision,
        "amendments": {str(revision): changes for revision, changes in ledger.amendments.items()},
        "is_closed": ledger.is_closed,
        "low_water_marks": list(ledger.low_water_marks),
        "rewards": [ledger.reward_position, ledger.reward_mark],
        "reward_reach": ledger.reward_reach.to_plain(),
        "weights": [ledger.weights[version] for version in range(ledger.version + 1)],
        "closed_groups": ledger.closed_groups.to_plain(),
        "tallies": [
            [group, replica, tally.num_failed, tally.num_lost, tally.num_stale]
            for group, tallies in ledger.tallies.items()
            for replica, tally in tallies.items()
        ],
        "stale_versions": [
            [group, replica, version]
            for group, stale in ledger.stale_versions.items()
            for replica, version in stale
        ],
        "disposed": sorted(ledger.disposed),
        "num_by_disposition": _counts(ledger.num_by_disposition),
        "untrained_in_a_row": _counts(ledger.untrained_in_a_row),
        "filtered_in_a_row": dict(ledger.filtered_in_a_row),
    }


def ledger_from_plain(plain: dict[str, Any]) -> LedgerState:
    """What `ledger_to_plain` gave. Raises ValueError, TypeError, KeyError or zlib.error for anything else."""
    ledger = LedgerState(
        version=int(plain["version"]),
        alpha=float(plain["alpha"]),
        taken_steps=tuple(TakenStep(**taken) for taken in plain["taken_steps"]),
        next_sequence=int(plain["next_sequence"]),
        head=bytes.fromhex(plain["head"]),
        revision=int(plain["revision"]),
        amendments={int(revision): dict(changes) for revision, changes in plain["amendments"].items()},
        is_closed=bool(plain["is_closed"]),
        low_water_marks=tuple(int(mark) for mark in plain["low_water_marks"]),
        reward_position=int(plain["rewards"][0]),
        reward_mark=int(plain["rewards"][1]),
        reward_reach=RewardReach.from_plain(plain["reward_reach"]),
        weights={version: str(sha256) for version, sha256 in enumerate(plain["weights"])},
        closed_groups=GroupOutcomes.from_plain(plain["closed_groups"]),
        disposed={(int(partition), int(offset)) for partition, offset in plain["disposed"]},
        num_by_disposition=defaultdict(int, _dispositions(plain["num_by_disposition"])),
        untrained_in_a_row=Counter(_dispositions(plain["untrained_in_a_row"])),
        filtered_in_a_row=Counter({str(name): int(num) for name, num in plain["filtered_in_a_row"].items()}),
    )
    for group, replica, num_failed, num_lost, num_stale in plain["tallies"]:
        ledger.tallies[group][replica] = ReplicaTally(num_failed, num_lost, num_stale)
    for group, replica, version in plain["stale_versions"]:
        ledger.stale_versions[group].append((replica, version))
    if len(ledger.weights) != ledger.version + 1 or set(ledger.amendments) != set(
        range(1, ledger.revision + 1)
    ):
        raise ValueError(f"version {ledger.version} with {len(ledger.weights)} weights")
    return ledger


def _counts(counts: dict[Disposition, int]) -> dict[str, int]:
    return {disposition.value: num for disposition, num in counts.items()}


def _dispositions(counts: dict[str, int]) -> dict[Disposition, int]:
    return {Disposition(name): int(num) for name, num in counts.items()}
