"""Which weights made what does not fit its label: the samples that are off, tried under other versions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.verification.groups import compared
from consumers.verification.rule import fits
from rollog.kernel.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from consumers.verification.groups import Compared, Group, GroupName
    from consumers.verification.ports import PublishedWeights, Scorer
    from consumers.verification.rule import Tolerances

most_candidates = 16
"""Versions under which the samples of one group are tried, the nearest first."""


@dataclass(slots=True)
class Searched:
    """How many of a group's suspects fit which version, and those that fit none of those tried."""

    num_by_version: Counter[int] = field(default_factory=Counter)
    fit_none: list[Compared] = field(default_factory=list)
    num_tried: int = 0


def fitting_versions(
    groups: Sequence[Group], scorer: Scorer, weights: PublishedWeights, tolerances: Tolerances
) -> Mapping[GroupName, Searched]:
    """What was found for each group with suspects.

    A worker that is stuck at a version is so in group after group: what fitted before is tried first.
    """
    found: dict[GroupName, Searched] = {}
    found_before: dict[str, int] = {}
    for group in groups:
        if group.suspects:
            first = found_before.get(group.worker_id)
            searched = _search(group, _candidates(group.version, first, weights), scorer, weights, tolerances)
            found[group.version, group.worker_id] = searched
            for version, _ in searched.num_by_version.most_common(1):
                found_before[group.worker_id] = version
    return found


def _search(
    group: Group,
    candidates: Iterator[int],
    scorer: Scorer,
    weights: PublishedWeights,
    tolerances: Tolerances,
) -> Searched:
    searched = Searched(fit_none=list(group.suspects))
    for version in candidates:
        try:
            with weights.file(version) as path:
                scorer.load(path)
        except WeightsError:
            continue  # a file that is gone can explain nothing; what names it counts as not checked
        searched.num_tried += 1
        pieces = [suspect.piece for suspect in searched.fit_none]
        tried = [compared(*pair) for pair in zip(pieces, scorer.logprobs(pieces), strict=True)]
        does_fit = [fits(each.differences, tolerances) for each in tried]
        searched.num_by_version[version] += sum(does_fit)
        searched.fit_none = [
            suspect for suspect, fit in zip(searched.fit_none, does_fit, strict=True) if not fit
        ]
        if not searched.fit_none or searched.num_tried == most_candidates:
            break
    searched.num_by_version = +searched.num_by_version
    return searched


def _candidates(version: int, first: int | None, weights: PublishedWeights) -> Iterator[int]:
    """`first`, then every other version of the ledger, the nearest to `version` first."""
    if first is not None and first != version:
        yield first
    distance = 1
    while any(weights.digest(version + sign * distance) is not None for sign in (-1, 1)):
        for candidate in (version - distance, version + distance):
            if candidate != first and weights.digest(candidate) is not None:
                yield candidate
        distance += 1
