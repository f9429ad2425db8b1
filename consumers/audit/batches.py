"""What each training step consumed, put together again from the samples themselves: lag, quota, figures, plan."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from consumers.audit.samples import lag_bound, lag_of, lag_quota
from schemas import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from consumers.audit.config import AuditConfig
    from consumers.audit.findings import Check, Place
    from consumers.audit.ledger_index import Entry, LedgerIndex
    from schemas import Genesis, Sample


@dataclass(slots=True)
class TrainedGroup:
    """What a step trained of one group; `oldest` is the sample with the largest lag."""

    replicas: set[int] = field(default_factory=set)
    lag: int = 0
    oldest: tuple[Place, str] | None = None


@dataclass(slots=True)
class TrainedBatch:
    """What one step trained."""

    groups: defaultdict[int, TrainedGroup] = field(default_factory=lambda: defaultdict(TrainedGroup))
    lags: Counter[int] = field(default_factory=Counter)
    num_samples: int = 0
    num_tokens: int = 0
    reward_sum: float = 0.0

    def add(self, sample: Sample, version: int, place: Place) -> None:
        """One trained sample, consumed at `version`."""
        lag = lag_of(sample, version)
        group = self.groups[sample.group_id]
        group.replicas.add(sample.replica)
        if group.oldest is None or lag > group.lag:
            group.lag, group.oldest = lag, (place, sample.sample_id)
        self.lags[lag] += 1
        self.num_samples += 1
        self.num_tokens += sample.num_tokens
        self.reward_sum += sample.reward or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a batch may not have been trained; `group_id` if it is about one group."""

    message: str
    expected: object
    found: object
    group_id: int | None = None


def batch_faults(batch: TrainedBatch, alpha: float, config: AuditConfig) -> Iterator[Fault]:
    """I3: no group over the bound, at most the quota of groups at it, whole groups, and no more than fit."""
    bound = lag_bound(alpha)
    for number, group in sorted(batch.groups.items()):
        if group.lag > bound:
            yield Fault(
                message=f"trained with lag {group.lag}, alpha {alpha:g} was in force",
                expected=f"lag {bound} or less",
                found=f"lag {group.lag}",
                group_id=number,
            )
        if config.group_size is not None and len(group.replicas) != config.group_size:
            yield Fault(
                message=f"group {number} was not trained as a whole",
                expected=f"{config.group_size} replicas",
                found=sorted(group.replicas),
                group_id=number,
            )
    if config.groups_per_batch is None:
        return
    if len(batch.groups) > config.groups_per_batch:
        yield Fault(
            message="more groups than a batch has", expected=config.groups_per_batch, found=len(batch.groups)
        )
    quota = lag_quota(alpha, config.groups_per_batch)
    at_bound = [number for number, group in sorted(batch.groups.items()) if group.lag == bound]
    if quota is not None and len(at_bound) > quota:
        yield Fault(
            message=f"more groups of lag {bound} than alpha {alpha:g} allows in one batch",
            expected=f"{quota} or fewer",
            found=f"groups {at_bound}",
            group_id=at_bound[quota],
        )


def check_freshness(check: Check, batch: TrainedBatch, entry: Entry, num_missing: int) -> None:
    """I3 for one step, as findings at the oldest sample of the group concerned, else at the step's own record.

    While samples of it are missing, groups cannot be called incomplete.
    """
    check.num_unchecked += num_missing
    if entry.alpha is None:
        check.num_unchecked += batch.num_samples
        return
    config = replace(entry.config, group_size=None) if num_missing else entry.config
    for fault in batch_faults(batch, entry.alpha, config):
        oldest = None if fault.group_id is None else batch.groups[fault.group_id].oldest
        place, name = oldest or (entry.place, entry.name)
        check.find(
            f"version {entry.record.version}: {fault.message}",
            place=place,
            record_id=name,
            expected=fault.expected,
            found=fault.found,
        )


def check_step(check: Check, batch: TrainedBatch, entry: Entry, genesis: Genesis | None) -> None:
    """I6 for one step: its record fits its samples, all of which were read."""
    body = entry.record.body
    assert isinstance(body, Step)
    facts: dict[str, tuple[object, object]] = {
        "num_samples": (batch.num_samples, body.num_samples),
        "num_groups": (len(batch.groups), body.num_groups),
        "num_tokens": (batch.num_tokens, body.num_tokens),
        "lags": ({str(lag): batch.lags[lag] for lag in sorted(batch.lags)}, body.lags),
    }
    for name, (expected, found) in facts.items():
        check.expect(
            expected, found, f"{name} of the step, by its samples", place=entry.place, record_id=entry.name
        )
    reward_mean = batch.reward_sum / max(1, batch.num_samples)
    if not math.isclose(reward_mean, body.reward_mean, rel_tol=1e-6, abs_tol=1e-9):
        check.find(
            "reward_mean of the step, by its samples",
            place=entry.place,
            record_id=entry.name,
            expected=reward_mean,
            found=body.reward_mean,
        )
    for message in _plan_faults(body, batch.num_samples, genesis):
        check.find(message, place=entry.place, record_id=entry.name)


def conclude_steps(ledger: LedgerIndex, batches: Mapping[int, TrainedBatch]) -> Iterator[tuple[int, int]]:
    """Check every step whose samples were all read; yields the versions of the others, and how many were not."""
    checks, num_trained = ledger.checks, Counter[int]()
    for entry in ledger.entries:
        num_trained[entry.record.version] += entry.num_trained
    for entry in ledger.entries:
        version = entry.record.version
        if not isinstance(entry.record.body, Step):
            continue
        batch = batches.get(version, TrainedBatch())
        missing = num_trained[version] - batch.num_samples
        check_freshness(checks.freshness, batch, entry, missing)
        if missing:
            checks.steps.num_unchecked += 1
            yield version, missing
        else:
            checks.steps.num_checked += 1
            check_step(checks.steps, batch, entry, ledger.genesis)


def _plan_faults(body: Step, num_samples: int, genesis: Genesis | None) -> Iterator[str]:
    """A plan names each position of the training order equally often, on ranks that exist."""
    counts = Counter(position for part in body.plan for position in part.positions)
    wrong = sorted(position for position in counts if not 0 <= position < num_samples)
    if wrong:
        yield f"the plan names positions {wrong[:5]}, the step has {num_samples} samples"
    if set(counts) != set(range(num_samples)) or len(set(counts.values())) > 1:
        yield f"the plan does not name each of {num_samples} samples equally often"
    ranks = {part.rank for part in body.plan}
    if genesis is not None and not ranks <= set(range(genesis.world_size)):
        yield f"the plan names ranks {sorted(ranks)}, the run has {genesis.world_size}"
