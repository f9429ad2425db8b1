"""The outcome of a verification, for a terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from consumers.verification.findings import Finding
    from consumers.verification.groups import Group, GroupName
    from consumers.verification.reading import Unread
    from consumers.verification.rule import Tolerances

_shown_groups = 40
_shown_samples = 5
_header = (
    f"{'version':>7}  {'worker':<24} {'samples':>8} {'tokens':>9} {'mean':>10} {'mean |d|':>9} {'largest':>9} "
    f"{'beyond':>7}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """A version whose weights could not be had, and how many segments name it."""

    version: int
    num_samples: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """What was compared, what is off, and what could not be checked.

    `foreign` counts, by version and worker, segments whose digest is not the ledger's: they name weights that the run
    never published. `altered` are samples whose bytes are not those that were judged, `unread` those that are gone.
    `tolerances` is None where nothing was compared.
    """

    tolerances: Tolerances | None
    groups: Sequence[Group]
    findings: Sequence[Finding]
    foreign: Mapping[GroupName, int] = field(default_factory=dict)
    unchecked: Sequence[Unchecked] = ()
    altered: Sequence[Unread] = ()
    unread: Sequence[Unread] = ()

    @property
    def num_samples(self) -> int:
        """Segments compared; a sample of several versions counts under each."""
        return sum(group.num_samples for group in self.groups)

    @property
    def is_clean(self) -> bool:
        """Whether something was compared and nothing is off."""
        return self._num_off == 0 and self.num_samples > 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing of what was chosen had to be left out."""
        return not self.unchecked and not self.unread

    def lines(self) -> Iterator[str]:
        """The report for a terminal."""
        if self.tolerances is not None:
            yield (
                "difference = recomputed - recorded, in nats; a token is beyond tolerance from "
                f"{self.tolerances.token:.3g}, off by itself from {self.tolerances.lone:.3g}"
            )
            yield _header
        for group in self.groups[:_shown_groups]:
            yield (
                f"{group.version:>7}  {group.worker_id:<24} {group.num_samples:>8} {group.num_tokens:>9} "
                f"{group.mean:>+10.2e} {group.mean_absolute:>9.2e} {group.largest:>9.2e} {group.num_beyond:>7}"
            )
        if len(self.groups) > _shown_groups:
            yield f"        ... and {len(self.groups) - _shown_groups} more; --json names all"
        yield from self._totals()
        for (version, worker), count in sorted(self.foreign.items()):
            yield (
                f"OFF version {version}, worker {worker}: {count} segment(s) name weights that the ledger does not "
                "have under this version"
            )
        yield from _some(self.altered, "OFF")
        for finding in self.findings:
            yield f"OFF {finding}"
        yield f"verify: {self._conclusion()}"

    def as_json(self) -> dict[str, Any]:
        """The report with every group and finding, as `--json` writes it."""
        return {
            "is_clean": self.is_clean,
            "is_complete": self.is_complete,
            "tolerances": None if self.tolerances is None else asdict(self.tolerances),
            "num_segments": self.num_samples,
            "num_tokens": sum(group.num_tokens for group in self.groups),
            "groups": [
                {**_group_json(group), "is_told_apart": self._is_told_apart(group)} for group in self.groups
            ],
            "findings": [
                {**asdict(finding), "fits": {str(version): count for version, count in finding.fits.items()}}
                for finding in self.findings
            ],
            "foreign": [
                {"version": version, "worker_id": worker, "num_segments": count}
                for (version, worker), count in sorted(self.foreign.items())
            ],
            "altered": [asdict(each) for each in self.altered],
            "unread": [asdict(each) for each in self.unread],
            "unchecked": [asdict(each) for each in self.unchecked],
        }

    @property
    def _num_off(self) -> int:
        return len(self.findings) + len(self.foreign) + len(self.altered)

    def _conclusion(self) -> str:
        left_out = (
            f"{len(self.unread)} sample(s) and {sum(each.num_samples for each in self.unchecked)} segment(s)"
        )
        if self._num_off:
            said = f"{self._num_off} thing(s) off"
        else:
            said = "nothing is off" if self.is_clean else "nothing could be compared"
        return said if self.is_complete else f"{said}; not checked: {left_out}"

    def _is_told_apart(self, group: Group) -> bool | None:
        return None if self.tolerances is None else group.is_told_apart(self.tolerances)

    def _totals(self) -> Iterator[str]:
        tokens = sum(group.num_tokens for group in self.groups)
        beyond = sum(group.num_beyond for group in self.groups)
        largest = max((group.largest for group in self.groups), default=0.0)
        yield (
            f"{self.num_samples} segment(s), {tokens} token(s): largest difference {largest:.3g}, {beyond} token(s) "
            "beyond tolerance"
        )
        alike = [group for group in self.groups if self._is_told_apart(group) is False]
        if alike:
            named = ", ".join(f"{group.version} ({group.worker_id})" for group in alike[:5])
            more = f" and {len(alike) - 5} more" if len(alike) > 5 else ""  # noqa: PLR2004
            yield (
                f"note: {len(alike)} of {len(self.groups)} line(s) fit a neighbouring version about as well, for there "
                f"are few tokens or the weights hardly differ; a label wrong by one may not show there: {named}{more}"
            )
        yield from _some(self.unread, "not checked:")
        for each in self.unchecked:
            yield f"not checked: {each.num_samples} segment(s) of version {each.version}: {each.reason}"


def _some(samples: Sequence[Unread], label: str) -> Iterator[str]:
    """The first of them, and how many more there are."""
    for each in samples[:_shown_samples]:
        yield f"{label} {each}"
    if len(samples) > _shown_samples:
        yield f"{label} {len(samples) - _shown_samples} more sample(s); --json names all"


def _group_json(group: Group) -> dict[str, Any]:
    figures = {
        "version": group.version,
        "worker_id": group.worker_id,
        "num_segments": group.num_samples,
        "num_tokens": group.num_tokens,
        "mean": group.mean,
        "mean_absolute": group.mean_absolute,
        "largest": group.largest,
        "num_beyond": group.num_beyond,
        "num_off": group.num_off,
    }
    return {
        **{name: _number(value) for name, value in figures.items()},
        "off_samples": list(group.off_samples),
        "neighbours": {
            str(group.version + by): {name: _number(value) for name, value in asdict(fit).items()}
            for by, fit in sorted(group.neighbours.items())
        },
    }


def _number(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    return value if not isinstance(value, float) or isfinite(value) else None
