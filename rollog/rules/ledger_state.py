"""What the ledger says, folded record by record; dispatcher, trainer and auditors fold it alike."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from hashlib import sha256

from rollog.kernel.errors import LedgerError
from rollog.rules.alpha_control import TakenStep, num_remembered
from rollog.rules.group_outcomes import GroupOutcomes
from rollog.rules.limits import ReplicaTally
from rollog.rules.reasons import unprotected_reasons
from rollog.rules.reward_reach import RewardReach
from rollog.settings.in_force import num_steps_in_force
from schemas import Amend, Disposition, Genesis, LedgerKind, LedgerRecord, Rebase, Step, Verdict

no_hash = bytes(32)


def record_hash(value: bytes) -> bytes:
    """The link of the chain: sha256 of a ledger record's value as stored."""
    return sha256(value).digest()


num_weights_digits = 16
"""Of the sha256 of a version's weights, as segments carry them."""

_most_replicas = 1 << 16


@dataclass(slots=True)
class LedgerState:
    """The fold of all ledger records so far.

    `tallies` and `stale_versions` hold open groups only; `stale_versions` maps a group to (replica, version) of each
    stale verdict that counts for protection. `closed_groups` knows how each ended, and which replicas were trained.
    `alpha` is in force for the next step; `taken_steps` are the newest ones, from which it is controlled.
    `amendments` maps a revision to the settings that changed with it, by dotted key.
    `untrained_in_a_row` counts, by outcome, the groups that were closed since a group was trained last, and
    `filtered_in_a_row`, by reason, those of them that were filtered.
    """

    version: int = -1
    alpha: float = 0.0
    taken_steps: tuple[TakenStep, ...] = ()
    next_sequence: int = 0
    head: bytes = no_hash
    revision: int = 0
    amendments: dict[int, dict[str, object]] = field(default_factory=dict)
    is_closed: bool = False
    low_water_marks: tuple[int, ...] = ()
    reward_position: int = 0
    reward_mark: int = 0
    reward_reach: RewardReach = field(default_factory=RewardReach)
    weights: dict[int, str] = field(default_factory=dict)
    closed_groups: GroupOutcomes = field(default_factory=GroupOutcomes)
    tallies: defaultdict[int, defaultdict[int, ReplicaTally]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(ReplicaTally))
    )
    stale_versions: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    disposed: set[tuple[int, int]] = field(default_factory=set)
    num_by_disposition: defaultdict[Disposition, int] = field(default_factory=lambda: defaultdict(int))
    untrained_in_a_row: Counter[Disposition] = field(default_factory=Counter)
    filtered_in_a_row: Counter[str] = field(default_factory=Counter)

    @property
    def has_genesis(self) -> bool:
        """Whether the ledger has begun."""
        return self.version >= 0

    def is_disposed(self, partition: int, offset: int) -> bool:
        """Whether the record at this place already has its disposition."""
        low = self.low_water_marks[partition] if partition < len(self.low_water_marks) else 0
        return offset < low or (partition, offset) in self.disposed

    def knows_weights(self, version: int, digest: str) -> bool:
        """Whether a segment's (version, digest) pair was committed."""
        return version in self.weights and self.weights[version][:num_weights_digits] == digest

    def changed_settings(self, revision: int | None = None) -> dict[str, object]:
        """Everything changed since genesis, as it was in force at `revision` (the newest without one)."""
        last = self.revision if revision is None else revision
        changed: dict[str, object] = {}
        for number in range(1, last + 1):
            changed |= self.amendments[number]
        return changed

    def num_steps(self, configured: int) -> int:
        """Training steps after which the run ends: `run.num_steps` of the manifest, or of the newest revision."""
        return num_steps_in_force(configured, self.changed_settings())

    def apply(self, record: LedgerRecord, digest: bytes) -> None:
        """Fold one more record, whose value has the sha256 `digest`. Raises LedgerError when it does not follow."""
        self._check_follows(record)
        self._apply_body(record)
        closed = {group.group_id for group in record.closed_groups}
        for verdict in record.verdicts:
            self._apply_verdict(verdict, record.version)
        for group in record.closed_groups:
            self._close_group(group.group_id, group.outcome)
        self._count_untrained(record)
        for group_id in closed:
            self.tallies.pop(group_id, None)
            self.stale_versions.pop(group_id, None)
        self.version = record.version
        self.alpha = record.alpha
        self.low_water_marks = record.low_water_marks
        self.reward_position, self.reward_mark = record.reward_position, record.reward_mark
        self.reward_reach.add(record)
        self.disposed = {
            (partition, offset)
            for partition, offset in self.disposed
            if offset >= record.low_water_marks[partition]
        }
        self.next_sequence = record.sequence + 1
        self.head = digest

    def seal(self, record: LedgerRecord) -> None:
        """Fold a step that is not committed, whose weights have no digest yet; nothing is folded before `land`."""
        self.apply(record, no_hash)
        # Without a digest no sample can have been begun with them.
        del self.weights[record.version]

    def land(self, record: LedgerRecord, digest: bytes) -> None:
        """The step that was sealed is committed, as this record: the same one, with the digest of its weights."""
        assert isinstance(record.body, Step)
        self.weights[record.version] = record.body.weights_sha256
        self.head = digest

    def _check_follows(self, record: LedgerRecord) -> None:
        name = f"ledger record {record.sequence} ({record.kind})"
        if record.sequence != self.next_sequence:
            raise LedgerError(f"{name} follows record {self.next_sequence - 1}: one is missing or doubled")
        if record.previous_hash != self.head:
            raise LedgerError(f"{name} names another predecessor than the one that is stored")
        if (record.kind is LedgerKind.GENESIS) != (record.sequence == 0):
            raise LedgerError(f"{name}: the ledger begins with one genesis record")
        if self.is_closed:
            raise LedgerError(f"{name} comes after the close record")
        expected = self.version + (record.kind in (LedgerKind.GENESIS, LedgerKind.STEP, LedgerKind.REBASE))
        if record.version != expected:
            raise LedgerError(f"{name} makes version {record.version}, expected {expected}")
        self._check_marks(record, name)

    def _check_marks(self, record: LedgerRecord, name: str) -> None:
        num_marks = len(record.low_water_marks)
        if record.sequence and num_marks != len(self.low_water_marks):
            raise LedgerError(f"{name} has {num_marks} low-water marks, expected {len(self.low_water_marks)}")
        unexpected = [verdict for verdict in record.verdicts if not 0 <= verdict.partition < num_marks]
        if unexpected:
            verdict = unexpected[0]
            raise LedgerError(
                f"{name} judges {verdict.sample_id} on partition {verdict.partition}; samples has {num_marks}"
            )

    def _apply_body(self, record: LedgerRecord) -> None:
        match record.body:
            case Genesis() | Rebase() | Step() as body:
                self.weights[record.version] = body.weights_sha256
                if isinstance(body, Step):
                    self._check_revision(body.revision, record.sequence)
                    taken = TakenStep.recorded(record.version, body)
                    self.taken_steps = (*self.taken_steps, taken)[-num_remembered:]
            case Amend() as body:
                self._amend(body, record.sequence)
        if record.kind is LedgerKind.CLOSE:
            self.is_closed = True

    def _check_revision(self, revision: int, sequence: int) -> None:
        if revision != self.revision:
            raise LedgerError(
                f"ledger record {sequence} (step) names revision {revision} of the settings, in force is "
                f"{self.revision}"
            )

    def _amend(self, body: Amend, sequence: int) -> None:
        name = f"ledger record {sequence} (amend)"
        if body.revision != self.revision + 1:
            raise LedgerError(f"{name} begins revision {body.revision}, expected {self.revision + 1}")
        try:
            changes = json.loads(body.changes_json)
        except ValueError as error:
            raise LedgerError(f"{name} holds changes that are no JSON: {error}") from error
        if not isinstance(changes, dict):
            raise LedgerError(f"{name} holds changes that are no JSON object: {body.changes_json[:100]}")
        self.revision = body.revision
        self.amendments[body.revision] = changes

    def _apply_verdict(self, verdict: Verdict, version: int) -> None:
        if self.is_disposed(verdict.partition, verdict.offset):
            raise LedgerError(
                f"sample at partition {verdict.partition}, offset {verdict.offset} gets a second disposition "
                f"({verdict.disposition})"
            )
        self.disposed.add((verdict.partition, verdict.offset))
        self.num_by_disposition[verdict.disposition] += 1
        group, replica = verdict.group_id, verdict.replica
        if verdict.disposition is Disposition.TRAINED:
            self._mark_trained(group, replica)
        if group in self.closed_groups:
            return
        tally_verdict(self.tallies[group][replica], verdict.disposition)
        if verdict.disposition is Disposition.STALE and verdict.reason not in unprotected_reasons:
            self.stale_versions[group].append((replica, version))

    def _mark_trained(self, group: int, replica: int) -> None:
        if not 0 <= replica < _most_replicas:
            raise LedgerError(f"group {group}, replica {replica} is trained; no group has such a replica")
        if self.closed_groups.is_trained(group, replica):
            raise LedgerError(f"group {group}, replica {replica} is trained twice")
        self.closed_groups.train(group, replica)

    def _count_untrained(self, record: LedgerRecord) -> None:
        outcomes = [group.outcome for group in record.closed_groups]
        if Disposition.TRAINED in outcomes:
            self.untrained_in_a_row.clear()
            self.filtered_in_a_row.clear()
        else:
            self.untrained_in_a_row.update(outcomes)
            self.filtered_in_a_row.update(filter_reasons(record).values())

    def _close_group(self, group: int, outcome: Disposition) -> None:
        if group in self.closed_groups:
            raise LedgerError(f"group {group} is closed twice")
        self.closed_groups.close(group, outcome)


def filter_reasons(record: LedgerRecord) -> dict[int, str]:
    """Why each group was filtered that this record closes so: what the verdicts on its members say."""
    return {
        verdict.group_id: verdict.reason
        for verdict in record.verdicts
        if verdict.disposition is Disposition.FILTERED
    }


def tally_verdict(tally: ReplicaTally, disposition: Disposition) -> None:
    """Count a verdict towards the limits of its replica."""
    match disposition:
        case Disposition.FAILED | Disposition.DEAD | Disposition.UNREWARDED:
            tally.num_failed += 1
        case Disposition.LOST:
            tally.num_lost += 1
        case Disposition.STALE:
            tally.num_stale += 1
