"""What a run comes to, counted again from its raw records by code that shares nothing with the product.

`python -m benchmarks.chaos.recount --broker HOST:PORT --run NAME [--prefix P] [--weights DIRECTORY]` reads the topics
`steps`, `samples` and `weights` and prints counts and faults as JSON; exit status 1 where there are faults. It imports
the Kafka client, fastavro, zstandard and the standard library, and `raw_log`, `stored_weights` and `stored_patches`,
which do the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.raw_log import Decoder, read_topic
from benchmarks.chaos.stored_weights import fault_of_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.chaos.raw_log import Raw

Place = tuple[int, int]
_makes_version = ("genesis", "step", "rebase")
_digest_bytes = 16


@dataclass(slots=True)
class Recount:
    """What was counted, and every fault in words."""

    num_records: int = 0
    num_steps: int = 0
    num_samples: int = 0
    num_groups: int = 0
    num_trained_twice: int = 0
    is_closed: bool = False
    head: str = ""
    dispositions: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Recounter:
    """Takes in the ledger, link by link, and compares it with samples and notices.

    | what | must hold |
    | --- | --- |
    | chain | sequence by sequence, each naming the sha256 of the one before |
    | versions | one more with each step, from the weights that the one before published; noticed in their order |
    | pruned | versions that were noticed, neither the first nor the newest one |
    | verdicts | at most one by record of samples, whose bytes and ids are as named |
    | training | at most one record by (group, replica), as many as the step says, each finished |
    | groups | closed once |
    | marks | never go back; every record below has its verdict; at the close, all of them, and no more verdicts |
    """

    def __init__(self, samples: Sequence[Raw]) -> None:
        self.result = Recount(num_samples=len(samples))
        self._decoder = Decoder()
        self._samples: dict[Place, Raw] = {(raw.partition, raw.offset): raw for raw in samples}
        self._verdicts: dict[Place, str] = {}
        self._trained: dict[tuple[int, int], Place] = {}
        self._groups: dict[int, int] = {}
        self._marks: list[int] = []
        self._versions: dict[int, str] = {}
        self._expected = (0, bytes(32))
        self._version = 0

    def recount(self, steps: Sequence[Raw], notices: Sequence[Raw]) -> Recount:
        """All of it."""
        for raw in steps:
            self._link(raw)
        self._compare_marks()
        self._compare_notices(notices)
        result = self.result
        result.num_records, result.num_groups = len(steps), len(self._groups)
        result.head = self._expected[1].hex()
        result.dispositions = dict(sorted(Counter(self._verdicts.values()).items()))
        return result

    def _fault(self, what: str) -> None:
        self.result.faults.append(what)

    def _link(self, raw: Raw) -> None:
        try:
            name, record = self._decoder.decode(raw.value)
        except ValueError as error:
            self._fault(f"steps offset {raw.offset}: {error}")
            return
        where = f"ledger record {record.get('sequence')} ({record.get('kind')})"
        if name != "LedgerRecord":
            self._fault(f"steps offset {raw.offset} holds a {name}")
            return
        sequence, previous = self._expected
        if record["sequence"] != sequence:
            self._fault(f"{where} stands where {sequence} must")
        if record["previous_hash"] != previous:
            self._fault(f"{where} does not name the sha256 of the record before it")
        if self.result.is_closed:
            self._fault(f"{where} comes after the close")
        self._expected = (record["sequence"] + 1, sha256(raw.value).digest())
        self._take_version(where, record)
        self._take_verdicts(where, record)
        self._take_groups(where, record)
        self._take_marks(where, record)

    def _take_version(self, where: str, record: Mapping[str, Any]) -> None:
        kind, body = record["kind"], record["body"] or {}
        makes = kind in _makes_version and record["part"] == 0
        due = self._version + (makes and kind != "genesis")
        if record["version"] != due:
            self._fault(f"{where} has version {record['version']}, {due} is due")
        self._version = record["version"]
        if not makes:
            return
        self.result.num_steps += kind == "step"
        if kind == "step" and body["weights_sha256_before"] != self._versions.get(due - 1):
            self._fault(f"{where} did not begin with the weights of version {due - 1}")
        self._versions[due] = body["weights_sha256"]

    def _take_verdicts(self, where: str, record: Mapping[str, Any]) -> None:
        num_trained = 0
        for verdict in record["verdicts"]:
            place = (verdict["partition"], verdict["offset"])
            if place in self._verdicts:
                self._fault(
                    f"{where}: the sample at {place} was disposed of before ({self._verdicts[place]})"
                )
            self._verdicts[place] = verdict["disposition"]
            sample = self._named_sample(where, place, verdict)
            if verdict["disposition"] == "trained":
                num_trained += 1
                self._take_trained(where, place, verdict, sample)
        said = (record["body"] or {}).get("num_samples") if record["kind"] == "step" else 0
        if record["num_parts"] == 1 and num_trained != said:
            self._fault(f"{where} says {said} trained samples and names {num_trained}")

    def _named_sample(self, where: str, place: Place, verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The fields of the sample that a verdict is about, compared with what the verdict says of it."""
        raw = self._samples.get(place)
        if raw is None:
            self._fault(f"{where}: there is no sample at {place} ({verdict['sample_id']})")
            return None
        if sha256(raw.value).digest()[:_digest_bytes] != verdict["digest"]:
            self._fault(f"{where}: the sample at {place} has other bytes than were judged")
        try:
            name, sample = self._decoder.decode(raw.value)
        except ValueError:
            name, sample = "", {}
        if name != "Sample":
            if verdict["disposition"] != "dead":
                self._fault(f"{where}: the record at {place} is no sample, and {verdict['disposition']}")
            return None
        ids = ("sample_id", "group_id", "replica")
        if verdict["disposition"] != "dead" and any(sample[key] != verdict[key] for key in ids):
            self._fault(
                f"{where}: the sample at {place} is {sample['sample_id']}, not {verdict['sample_id']}"
            )
        return sample

    def _take_trained(
        self, where: str, place: Place, verdict: Mapping[str, Any], sample: Mapping[str, Any] | None
    ) -> None:
        who = (verdict["group_id"], verdict["replica"])
        if who in self._trained:
            self.result.num_trained_twice += 1
            self._fault(
                f"{where}: group {who[0]} replica {who[1]} was trained before, at {self._trained[who]}"
            )
        self._trained[who] = place
        if sample is not None and (sample["status"], sample["kind"]) != ("finished", "training"):
            self._fault(f"{where}: the sample at {place} is {sample['kind']} and {sample['status']}")

    def _take_groups(self, where: str, record: Mapping[str, Any]) -> None:
        for group in record["closed_groups"]:
            number = group["group_id"]
            if number in self._groups:
                self._fault(f"{where} closes group {number}, which record {self._groups[number]} closed")
            self._groups[number] = record["sequence"]

    def _take_marks(self, where: str, record: Mapping[str, Any]) -> None:
        marks = list(record["low_water_marks"])
        if any(now < before for now, before in zip(marks, self._marks, strict=False)):
            self._fault(f"{where}: low-water marks go back from {self._marks} to {marks}")
        self._marks = marks
        if record["kind"] == "close":
            self.result.is_closed = True
            if marks != list(record["body"]["end_offsets"]):
                self._fault(f"{where}: marks {marks} are not the ends {record['body']['end_offsets']}")

    def _compare_marks(self) -> None:
        below = {place for place in self._samples if place[1] < self._mark(place)}
        judged = {place for place in self._verdicts if place[1] < self._mark(place)}
        for place in sorted(below - judged)[:20]:
            self._fault(f"the sample at {place} lies below the low-water mark and has no disposition")
        if len(judged) != len(below):
            self._fault(f"{len(judged)} dispositions below the low-water marks, {len(below)} samples")
        if self.result.is_closed and len(self._verdicts) != len(judged):
            self._fault(
                f"{len(self._verdicts) - len(judged)} dispositions lie beyond the end of the closed run"
            )

    def _mark(self, place: Place) -> int:
        return self._marks[place[0]] if place[0] < len(self._marks) else 0

    def _compare_notices(self, notices: Sequence[Raw]) -> None:
        noticed: dict[int, str] = {}
        for raw in notices:
            try:
                name, record = self._decoder.decode(raw.value)
                if name == "WeightsPruned":
                    self._take_pruned(raw, record["versions"], max(noticed, default=0))
                elif noticed.setdefault(record["version"], record["sha256"]) != record["sha256"]:
                    self._fault(f"weights offset {raw.offset}: other weights of version {record['version']}")
            except (ValueError, KeyError) as error:
                self._fault(f"weights offset {raw.offset}: {error}")
        if list(noticed.items()) != sorted(self._versions.items()):
            self._fault(f"{len(noticed)} notices of weights are not the {len(self._versions)} versions made")

    def _take_pruned(self, raw: Raw, versions: Sequence[int], newest: int) -> None:
        for version in versions:
            if not 0 < version < newest:
                self._fault(f"weights offset {raw.offset} lets version {version} go, which must stay")


def recount(steps: Sequence[Raw], samples: Sequence[Raw], notices: Sequence[Raw]) -> Recount:
    """Count a run again from the records of three of its topics."""
    return Recounter(samples).recount(steps, notices)


def altered_weights(notices: Sequence[Raw], directory: Path) -> list[str]:
    """What is wrong with the published weights in a directory, by the last notice of each that was not pruned."""
    decoder, noticed = Decoder(), dict[int, dict[str, Any]]()
    for raw in notices:
        name, record = decoder.decode(raw.value)
        if name == "WeightsPruned":
            for version in record["versions"]:
                noticed.pop(version, None)
        else:
            noticed[record["version"]] = record
    found = (fault_of_version(notice, directory) for notice in noticed.values())
    return [fault for fault in found if fault is not None]


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.recount", description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--prefix", default="rollog")
    parser.add_argument("--weights", type=Path)
    chosen = parser.parse_args(words)
    steps, samples, notices = (
        read_topic(chosen.broker, f"{chosen.prefix}.{chosen.run}.{topic}")
        for topic in ("steps", "samples", "weights")
    )
    counted = recount(steps, samples, notices)
    if chosen.weights is not None:
        counted.faults += altered_weights(notices, chosen.weights)
    sys.stdout.write(json.dumps(asdict(counted), indent=1) + "\n")
    return 1 if counted.faults else 0


if __name__ == "__main__":
    sys.exit(main())
