"""The outcome of an audit, for a terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumers.audit.disposal import SampleCounts
    from consumers.audit.findings import Check, Finding, Missing

shown_findings = 20
"""Findings of one check that a terminal shows."""

no_head_kept = (
    "no head was given: an unkeyed chain shows tampering only against a head kept elsewhere; whoever can write the "
    "topic can write the whole chain anew"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of the chain, and where in it the head is that was kept elsewhere."""

    sha256: str | None
    kept: str | None = None
    is_found: bool = False
    num_later: int = 0
    """Records after the kept head."""

    def __str__(self) -> str:
        head = f"head {self.sha256 or 'none: the ledger is empty'}"
        if self.kept is None:
            return f"{head}; {no_head_kept}"
        if not self.is_found:
            return f"{head}; the head kept elsewhere, {self.kept}, is not in the chain"
        later = f"{self.num_later} record(s) come after it" if self.num_later else "it is the last record"
        return f"{head}; the head kept elsewhere, {self.kept}, is in the chain: {later}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What was checked, what is off, what was not there, and what is worth knowing."""

    run: str
    version: int
    is_closed: bool
    head: Head
    checks: Sequence[Check]
    samples: SampleCounts
    missing: Sequence[Missing]
    notes: Sequence[str]
    ends: dict[str, int]
    """End offset of each partition, as found at the start."""

    @property
    def findings(self) -> list[tuple[Check, Finding]]:
        """Everything that is off."""
        return [(check, finding) for check in self.checks for finding in check.findings]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is off."""
        return not self.findings

    def lines(self) -> Iterator[str]:
        """The report for a terminal."""
        if self.is_clean and not self._has_begun:
            yield from self._not_begun()
            return
        state = (
            "closed"
            if self.is_closed
            else "live, or stopped; what was written after this began is not looked at"
        )
        yield f"run {self.run}: version {self.version}, {state}"
        for check in self.checks:
            verdict = f"{len(check.findings)} OFF" if check.findings else "ok" if check.num_checked else "-"
            unchecked = f" ({check.num_unchecked} not checked)" if check.num_unchecked else ""
            yield f"{check.name:<12} {verdict:>6}  {check.num_checked} {check.unit}{unchecked}: {check.what}"
        yield self._samples_line()
        yield str(self.head)
        for missing in self.missing:
            yield f"not there: {missing}"
        for note in self.notes:
            yield f"note: {note}"
        for check in self.checks:
            for finding in check.findings[:shown_findings]:
                yield f"OFF {check.name}: {finding}"
            if len(check.findings) > shown_findings:
                yield f"OFF {check.name}: {len(check.findings) - shown_findings} more; --json names all"
        yield f"audit: {len(self.findings)} thing(s) off" if self.findings else "audit: nothing is off"

    @property
    def _has_begun(self) -> bool:
        return self.head.sha256 is not None or self.samples.num_records > 0

    def _not_begun(self) -> Iterator[str]:
        yield f"run {self.run}: its ledger has not begun, there is nothing to audit yet"
        yield f"`rollog watch --run {self.run}` says what it waits for"
        for missing in self.missing:
            yield f"not there: {missing}"
        for note in self.notes:
            yield f"note: {note}"

    def as_json(self) -> dict[str, Any]:
        """The report with every finding, as `--json` writes it."""
        return {
            "run": self.run,
            "is_clean": self.is_clean,
            "is_closed": self.is_closed,
            "version": self.version,
            "head": asdict(self.head),
            "checks": [
                {
                    "name": check.name,
                    "what": check.what,
                    "unit": check.unit,
                    "num_checked": check.num_checked,
                    "num_unchecked": check.num_unchecked,
                    "findings": [asdict(finding) for finding in check.findings],
                }
                for check in self.checks
            ],
            "samples": {
                "num_records": self.samples.num_records,
                **asdict(self.samples),
                "num_by_disposition": dict(sorted(self.samples.num_by_disposition.items())),
            },
            "missing": [asdict(missing) for missing in self.missing],
            "notes": list(self.notes),
            "end_offsets": self.ends,
        }

    def _samples_line(self) -> str:
        counts = self.samples
        by_disposition = ", ".join(
            f"{disposition} {count}" for disposition, count in sorted(counts.num_by_disposition.items())
        )
        others = {
            "open": counts.num_open,
            "after the close": counts.num_after_close,
            "without a disposition": counts.num_undisposed,
            "unknown": counts.num_unknown,
        }
        rest = "".join(f", {count} {name}" for name, count in others.items() if count)
        disposed = counts.num_by_disposition.total()
        return f"samples: {counts.num_records} records = {disposed} disposed of ({by_disposition or 'none'}){rest}"
