"""What an audit says: checks with counts, exact records where something is off, and what could not be checked."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One record, or one file, that is not as it must be."""

    message: str
    place: Place | None = None
    record_id: str = ""
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        where = "" if self.place is None else f"{self.place}: "
        named = f"{self.record_id}: " if self.record_id else ""
        compared = f"; expected {self.expected}, found {self.found}" if self.expected or self.found else ""
        return f"{where}{named}{self.message}{compared}"


@dataclass(slots=True, kw_only=True)
class Check:
    """One thing that was checked: how often, how often it could not be, and everything that failed it."""

    name: str
    what: str
    unit: str
    num_checked: int = 0
    num_unchecked: int = 0
    findings: list[Finding] = field(default_factory=list)

    def find(
        self,
        message: str,
        *,
        place: Place | None = None,
        record_id: str = "",
        expected: object = "",
        found: object = "",
    ) -> None:
        """Something is off."""
        self.findings.append(
            Finding(
                message=message,
                place=place,
                record_id=record_id,
                expected=str(expected),
                found=str(found),
            )
        )

    def expect(
        self, expected: object, found: object, message: str, *, place: Place, record_id: str = ""
    ) -> None:
        """Two things must be equal."""
        if expected != found:
            self.find(message, place=place, record_id=record_id, expected=expected, found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Something that was not there to be checked, and what that leaves unchecked. No violation by itself."""

    what: str
    consequence: str

    def __str__(self) -> str:
        return f"{self.what}: {self.consequence}"


class Checks:
    """Every check of an audit, in the order in which they are reported."""

    def __init__(self) -> None:
        self._add_ledger()
        self._add_generation()
        self._add_samples()

    def _add_ledger(self) -> None:
        self.chain = Check(
            name="chain",
            what="genesis first, each record names the sha256 of the one before it, nothing after close",
            unit="records",
        )
        self.end = Check(
            name="end",
            what="nothing points beyond the end of the ledger, read again last; every task has ended if the run has",
            unit="ledger records after the first look",
        )
        self.manifest = Check(
            name="manifest",
            what="the register names the run with the configuration of genesis, and with no other",
            unit="manifests",
        )
        self.dispositions = Check(
            name="I1", what="one final disposition for each record of samples", unit="records of samples"
        )
        self.digests = Check(name="digests", what="bytes are those judged", unit="records of samples")
        self.trained = Check(
            name="I2", what="no sample and no (group, replica) trained twice", unit="trained samples"
        )

    def _add_generation(self) -> None:
        self.freshness = Check(
            name="I3",
            what="lag of everything trained within the alpha in force, quota included",
            unit="segments of trained samples",
        )
        self.versions = Check(
            name="I4",
            what="weights noticed, served, generated with and trained from are those of the ledger",
            unit="names of weights",
        )
        self.origin = Check(
            name="origin",
            what="what was trained had been ordered: task, seed, grant and worker are in the log",
            unit="trained samples",
        )
        self.files = Check(
            name="I4 files", what="weights in the store have the sha256 of the ledger", unit="versions"
        )
        self.issues = Check(
            name="I5",
            what="nothing issued again that had finished and was not judged stale, unrewarded, failed or dead",
            unit="tasks issued again",
        )
        self.steps = Check(
            name="I6",
            what="a step could be done again: its samples are there, its plan and figures fit them",
            unit="steps",
        )

    def _add_samples(self) -> None:
        self.headers = Check(
            name="headers",
            what="headers, by which a dispatcher decides, say what their records do",
            unit="samples that were not judged dead and have a summary",
        )
        self.sequences = Check(
            name="I11, I12",
            what="sequences are whole: shared ids are there, each sampled token is in one turn, trained as that says",
            unit="sequences of trained samples that name their turns",
        )
        self.payloads = Check(
            name="I16",
            what="objects that large samples name are there, with those bytes, and fit their records",
            unit="objects of samples that were not judged dead",
        )
        self.verdicts = Check(
            name="verdicts",
            what="dispositions follow from the records, worked out anew",
            unit="dispositions",
        )
        self.kept_turns = Check(
            name="I15",
            what="each turn of what was trained is on the log as it is in the sample, behind the same ids",
            unit="turns of trained samples",
        )
        self.late_rewards = Check(
            name="I17",
            what="what waited for its reward has the first valid one, named by the ledger, or was disposed of before "
            "one was read",
            unit="samples that came without a reward",
        )
        self.dead_letters = Check(
            name="dead letters", what="one for each record judged dead, with its bytes", unit="dead letters"
        )

    def all(self) -> list[Check]:
        """All of them; I15 where turns are kept, I17 where any sample came without its reward, headers where any is."""
        found = list(vars(self).values())
        for check in (self.kept_turns, self.late_rewards, self.headers):
            if not check.num_checked and not check.num_unchecked and not check.findings:
                found.remove(check)
        return found
