"""What each training step consumed, put together again from the samples themselves: lag, quota, figures, plan."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from consumers.audit.findings import Check
from consumers.audit.samples import lag_bound, lag_of, lag_quota
from consumers.audit.sequences import num_counted_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumers.audit.config import AuditConfig
    from consumers.audit.findings import Place
    from consumers.audit.ledger_index import Entry, LedgerIndex
    from consumers.audit.step_facts import PlanFacts, StepFacts
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
    num_sequences: int = 0
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
        self.num_sequences += 1 + len(sample.forks)
        self.num_tokens += num_counted_tokens(sample)
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


def check_step(
    check: Check, batch: TrainedBatch, entry: Entry, step: StepFacts, genesis: Genesis | None
) -> None:
    """I6 for one step: its record fits its samples, all of which were read."""
    facts: dict[str, tuple[object, object]] = {
        "num_samples": (batch.num_samples, step.num_samples),
        "num_groups": (len(batch.groups), step.num_groups),
        "num_tokens": (batch.num_tokens, step.num_tokens),
        "lags": ({str(lag): batch.lags[lag] for lag in sorted(batch.lags)}, step.lags),
    }
    for name, (expected, found) in facts.items():
        check.expect(
            expected, found, f"{name} of the step, by its samples", place=entry.place, record_id=entry.name
        )
    reward_mean = batch.reward_sum / max(1, batch.num_samples)
    if not math.isclose(reward_mean, step.reward_mean, rel_tol=1e-6, abs_tol=1e-9):
        check.find(
            "reward_mean of the step, by its samples",
            place=entry.place,
            record_id=entry.name,
            expected=reward_mean,
            found=step.reward_mean,
        )
    for message in _plan_faults(step.plan, batch.num_sequences, genesis):
        check.find(message, place=entry.place, record_id=entry.name)


@dataclass(slots=True)
class StepResult:
    """What came out of checking one step."""

    freshness: Check = field(default_factory=lambda: _aside("freshness"))
    steps: Check = field(default_factory=lambda: _aside("steps"))
    num_missing: int = 0
    """Samples of it that were not read."""

    def add_to(self, freshness: Check, steps: Check) -> None:
        """Count it there."""
        for found, check in ((self.freshness, freshness), (self.steps, steps)):
            check.num_checked += found.num_checked
            check.num_unchecked += found.num_unchecked
            check.findings += found.findings


class TrainedBatches:
    """What every step trained, until all of it has been read: then the step is checked, and its samples forgotten.

    What that found is told by `conclude`, in the order of the ledger. Needs a ledger that is read to its end.
    """

    def __init__(self, ledger: LedgerIndex) -> None:
        self._ledger = ledger
        self._open: dict[int, TrainedBatch] = {}
        self._results: dict[int, StepResult] = {}
        self._steps: defaultdict[int, list[Entry]] = defaultdict(list)
        self._num_trained = Counter[int]()
        self._clean = StepResult()
        self._clean.steps.num_checked = 1
        for entry in ledger.entries:
            self._num_trained[entry.record.version] += entry.num_trained
            if entry.step is not None:
                self._steps[entry.record.version].append(entry)

    @property
    def num_open(self) -> int:
        """Steps of which samples have been read, but not all."""
        return len(self._open)

    def add(self, sample: Sample, version: int, place: Place) -> None:
        """One sample that the step to `version` trained."""
        batch = self._open.setdefault(version, TrainedBatch())
        batch.add(sample, version - 1, place)
        if batch.num_samples == self._num_trained[version]:
            del self._open[version]
            for entry in self._steps[version]:
                result = self._checked(batch, entry)
                self._results[entry.index] = self._clean if result == self._clean else result

    def conclude(self) -> Iterator[tuple[int, int]]:
        """Tell what was found, check what is left; yields versions with samples that were not read, and how many."""
        checks = self._ledger.checks
        for entry in self._ledger.entries:
            if entry.step is None:
                continue
            version = entry.record.version
            result = self._results.get(entry.index)
            if result is None:
                result = self._checked(self._open.get(version, TrainedBatch()), entry)
            result.add_to(checks.freshness, checks.steps)
            if result.num_missing:
                yield version, result.num_missing

    def _checked(self, batch: TrainedBatch, entry: Entry) -> StepResult:
        assert entry.step is not None
        missing = self._num_trained[entry.record.version] - batch.num_samples
        result = StepResult(num_missing=missing)
        check_freshness(result.freshness, batch, entry, missing)
        if missing:
            result.steps.num_unchecked += 1
        else:
            result.steps.num_checked += 1
            check_step(result.steps, batch, entry, entry.step, self._ledger.genesis)
        return result


def _aside(name: str) -> Check:
    return Check(name=name, what="", unit="")


def _plan_faults(plan: PlanFacts, num_sequences: int, genesis: Genesis | None) -> Iterator[str]:
    """A plan names each position of the training order equally often, on ranks that exist."""
    counts = plan.counts
    wrong = sorted(position for position in counts if not 0 <= position < num_sequences)
    if wrong:
        yield f"the plan names positions {wrong[:5]}, the samples of the step have {num_sequences} sequences"
    if set(counts) != set(range(num_sequences)) or len(set(counts.values())) > 1:
        yield f"the plan does not name each of {num_sequences} sequences equally often"
    if genesis is not None and not plan.ranks <= set(range(genesis.world_size)):
        yield f"the plan names ranks {sorted(plan.ranks)}, the run has {genesis.world_size}"
