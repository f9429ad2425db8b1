"""What a verification says is off: in words, by version and worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from consumers.verification.groups import Compared, Group, GroupName
    from consumers.verification.rule import Tolerances
    from consumers.verification.search import Searched

_shown_samples = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something off with what one worker made under one version.

    `fits` counts, by version, the samples that another version explains; `samples` name some of those concerned.
    """

    version: int
    worker_id: str
    message: str
    fits: Mapping[int, int] = field(default_factory=dict)
    samples: Sequence[str] = ()

    def __str__(self) -> str:
        return f"version {self.version}, worker {self.worker_id}: {self.message}"


def findings_of(
    groups: Sequence[Group], searched: Mapping[GroupName, Searched], tolerances: Tolerances
) -> list[Finding]:
    """Everything that is off, by version and worker; one group may have several."""
    return [
        finding
        for group in groups
        for finding in _of_group(group, searched.get((group.version, group.worker_id)), tolerances)
    ]


def _of_group(group: Group, searched: Searched | None, tolerances: Tolerances) -> Iterator[Finding]:
    if searched is not None:
        if searched.num_by_version:
            yield _other_weights(group, searched)
        if searched.fit_none:
            yield _no_weights(group, searched)
    elif group.is_off_as_a_whole(tolerances):
        yield _as_a_whole(group, tolerances)


def _other_weights(group: Group, searched: Searched) -> Finding:
    """Samples that other weights explain: a reload that was skipped, or a label that is wrong."""
    fits = dict(sorted(searched.num_by_version.items()))
    named = ", ".join(f"version {version} ({count} of them)" for version, count in fits.items())
    tried = sum(fits.values()) + len(searched.fit_none)
    return Finding(
        version=group.version,
        worker_id=group.worker_id,
        message=(
            f"{group.num_off} of {group.num_samples} sample(s) were not made with these weights; of {tried} tried fit "
            f"{named}. The worker went on with other weights, or the label is wrong"
        ),
        fits=fits,
        samples=group.off_samples,
    )


def _no_weights(group: Group, searched: Searched) -> Finding:
    """Samples that no weights explain: log-probabilities that were altered, or computed in another way."""
    named = "; ".join(_described(suspect) for suspect in searched.fit_none[:_shown_samples])
    more = len(searched.fit_none) - _shown_samples
    return Finding(
        version=group.version,
        worker_id=group.worker_id,
        message=(
            f"{len(searched.fit_none)} sample(s) have log-probabilities that neither these weights nor those of "
            f"{searched.num_tried} other version(s) give: {named}{f' and {more} more' if more > 0 else ''}. They were "
            "altered, or the engine computed in another way"
        ),
        samples=[suspect.piece.sample_id for suspect in searched.fit_none],
    )


def _described(suspect: Compared) -> str:
    piece = suspect.piece
    return (
        f"{piece.sample_id} (partition {piece.partition}, offset {piece.offset}; {len(suspect.differences)} tokens, "
        f"off by {suspect.furthest:.3g} at most)"
    )


def _as_a_whole(group: Group, tolerances: Tolerances) -> Finding:
    """No sample is off by itself, but all together are."""
    fits = {
        group.version + by: fit.num_tokens
        for by, fit in sorted(group.neighbours.items())
        if fit.is_better(tolerances)
    }
    told = (
        f"version {', '.join(map(str, fits))} explains them better: the worker went on with other weights, or the "
        "label is wrong"
        if fits
        else "they are larger than noise, or lie on one side"
    )
    return Finding(
        version=group.version,
        worker_id=group.worker_id,
        message=(
            f"the differences of {group.num_samples} sample(s) are no noise (mean {group.mean:+.3g}, mean of "
            f"|difference| {group.mean_absolute:.3g}): {told}"
        ),
        fits=dict.fromkeys(fits, group.num_samples),
    )
