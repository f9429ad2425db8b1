"""The audit of a run, live or finished.

Consumes steps, dead-letters, tasks, control, rewards, turns, samples, weights, evaluations and workers, each once, up
to the ends found at the start, and the weights files and objects of the store; then what has come to steps meanwhile.
Produces nothing. Of a sample only digest and header are held, from its disposition in the ledger until the record is
met; of each reward that may count, and of each turn, a few numbers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from consumers.audit.chain import Chain
from consumers.audit.dead_letters import DeadLetterChecks
from consumers.audit.disposal import SamplesPass
from consumers.audit.findings import Checks, Missing
from consumers.audit.issues import Reissues
from consumers.audit.kept_turns import KeptTurns
from consumers.audit.late_rewards import LateRewardChecks
from consumers.audit.ledger_end import LedgerEnd
from consumers.audit.ledger_index import LedgerIndex
from consumers.audit.manifests import check_manifests
from consumers.audit.objects import ObjectChecks
from consumers.audit.orders import Orders
from consumers.audit.other_writers import OtherWriters
from consumers.audit.report import AuditReport, Head
from consumers.audit.tasks import TasksPass
from consumers.audit.topics import StoredTopics
from consumers.audit.weights import WeightsChecks
from consumers.audit.weights_files import check_files
from consumers.named_weights import pruned_in
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import runs_topic
from rollog.kernel.payloads import PayloadStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.weights import WeightsStore

settle_seconds = 5.0
"""How long a transaction may take to show up on all of its topics."""
_shown_unexpected = 3
_seconds_between_looks = 0.1


def audit_run(
    broker: Broker,
    topics: RunTopics,
    store: WeightsStore | None = None,
    *,
    head: str | None = None,
    ends_with: str | None = None,
    has_all_files: bool = True,
    settles_within_seconds: float = settle_seconds,
) -> AuditReport:
    """Everything that can be checked of a run; without a store its files are not.

    `head` is the hexadecimal sha256 of a ledger record, kept elsewhere, that the chain must hold,
    `ends_with` that of its last record, as an archive names it. With `has_all_files`
    False the store holds only what was chosen, and no file must be there. Where something points beyond the ledger, its
    end is read again for at most `settles_within_seconds`. Of `broker` only consumer() and admin() are used.
    Raises TopicMismatch without `steps` or `samples`, BrokerTimeout.
    """
    with broker.consumer(client_id="audit") as consumer:
        audit = _Audit(StoredTopics(broker, consumer, topics), topics, store)
        audit.read()
        audit.look_at_manifests(broker)
        audit.look_at_files(store, has_all_files=has_all_files)
        audit.look_at_end(ends_with, settles_within_seconds)
    return audit.report(head)


class _Audit:
    """One pass over the topics: the ledger on construction, then the others by `read`."""

    def __init__(self, stored: StoredTopics, topics: RunTopics, store: WeightsStore | None) -> None:
        self._stored = stored
        self._topics = topics
        self._checks = Checks()
        self._missing: list[Missing] = []
        self._chain = Chain(self._checks.chain, begins_with_genesis=not stored.is_cut(topics.steps))
        self._ledger = LedgerIndex(topics.samples, stored.num_partitions(topics.samples), self._checks)
        self._read_ledger()
        is_live = self._ledger.close is None
        ledger_end = stored.ends[topics.steps][TopicPartition(topics.steps, 0)]
        self._end = LedgerEnd(
            check=self._checks.end,
            position=ledger_end,
            version=self._ledger.version,
            is_closed=not is_live,
            is_empty=not self._chain.digests,
        )
        self._weights = WeightsChecks(self._ledger, self._end, is_live=is_live)
        self._dead_letters = DeadLetterChecks(
            self._ledger, self._end, is_live=is_live, is_cut=stored.is_cut(topics.dead_letters)
        )
        self._orders = Orders(
            self._ledger,
            self._end,
            tasks_cut=stored.is_cut(topics.tasks),
            control_cut=stored.is_cut(topics.control),
        )
        self._reissues = Reissues(
            self._ledger,
            cut_partitions=set(stored.cut(topics.tasks)),
            ledger_end=ledger_end,
        )
        self._tasks = TasksPass(self._reissues, self._orders)
        self._other_writers = OtherWriters(self._ledger)
        self._late_rewards = LateRewardChecks(
            self._ledger, topics.rewards, cut=stored.cut(topics.rewards).get(0, 0)
        )
        self._kept_turns = KeptTurns(
            self._checks.kept_turns,
            is_kept=self._ledger.config.keeps_turns,
            is_cut=stored.is_cut(topics.turns),
        )
        self._samples = SamplesPass(
            self._ledger,
            self._reissues,
            self._dead_letters,
            self._weights,
            self._orders,
            self._end,
            self._other_writers,
            self._late_rewards,
            self._kept_turns,
            ObjectChecks(self._checks.payloads, None if store is None else PayloadStore(store, topics)),
        )

    def read(self) -> None:
        """Read every topic but `steps`, and check."""
        stored, topics = self._stored, self._topics
        for record in stored.read(topics.dead_letters):
            self._dead_letters.add(record)
        for record in stored.read(topics.control):
            self._orders.control(record)
        for record in stored.read(topics.tasks):
            self._tasks.add(record)
        for record in stored.read(topics.rewards):
            self._late_rewards.add(record)
        for record in stored.read(topics.turns):
            self._kept_turns.add(record)
        for record in stored.read(topics.samples):
            self._samples.add(record)
        self._missing += self._what_retention_took()
        self._missing += self._samples.conclude(stored.cut(topics.samples))
        self._missing += self._undone_steps()
        self._dead_letters.conclude()
        self._orders.conclude(stored.cut(topics.samples))
        for record in stored.read(topics.weights):
            self._weights.add(record)
        self._weights.conclude(are_notices_cut=stored.is_cut(topics.weights))
        for record in stored.read(topics.evaluations):
            self._weights.evaluation(record)
        for record in stored.read(topics.workers):
            self._weights.served(record)

    def look_at_manifests(self, broker: Broker) -> None:
        """Compare the register with genesis."""
        self._missing += check_manifests(broker, self._topics, self._ledger.genesis, self._checks.manifest)

    def look_at_files(self, store: WeightsStore | None, *, has_all_files: bool) -> None:
        """Read the files of all versions."""
        if store is None:
            self._checks.files.num_unchecked += len(self._ledger.weights)
            self._missing.append(Missing(what="weights store", consequence="its files are not checked"))
            return
        self._end.take_files(store.names())
        self._missing += check_files(
            self._ledger,
            store,
            self._weights,
            pruned_meanwhile=self._pruned_meanwhile,
            has_all_files=has_all_files,
        )

    def _pruned_meanwhile(self) -> set[int]:
        """Versions that were let go since `weights` was read: their files may have left under this audit."""
        topic = self._topics.weights
        place = TopicPartition(topic, 0)
        if topic not in self._stored.ends:
            return set()
        later, _ = self._stored.read_later(topic, 0, self._stored.ends[topic][place])
        return pruned_in(later)

    def look_at_end(self, ends_with: str | None, settles_within_seconds: float) -> None:
        """Nothing points beyond the end of the ledger, read once more; it ends with the record that its archive names.

        Whoever makes an archive reads the ledger first and the other topics after it, so what is ahead of it there
        shows nothing.
        """
        if ends_with is None:
            self._read_end_again(settles_within_seconds)
            self._end.conclude()
        elif self._ledger.close is None:
            self._missing.append(
                Missing(
                    what="what came after the ledger had been read into the archive of a run that went on",
                    consequence="whether its end was cut off shows only against the archive's own head",
                )
            )
        self._end.conclude_empty()
        head = self._chain.digests[-1].hex() if self._chain.digests else None
        if ends_with not in (None, head):
            self._checks.chain.find(
                "the ledger does not end with the record that its archive names: the end was cut off or altered",
                expected=ends_with,
                found=head,
            )

    def report(self, head: str | None) -> AuditReport:
        """What came out."""
        return AuditReport(
            run=self._topics.run,
            version=self._ledger.version,
            is_closed=self._ledger.close is not None,
            head=self._compare_head(head),
            checks=self._checks.all(),
            samples=self._samples.counts,
            missing=self._missing,
            notes=[*self._notes(), *self._notes_on_manifests()],
            ends={
                f"{place.topic}[{place.partition}]": end
                for ends in self._stored.ends.values()
                for place, end in ends.items()
            },
        )

    def _read_ledger(self) -> None:
        for record in self._stored.read(self._topics.steps):
            link = self._chain.add(record)
            if link is None:
                self._ledger.is_complete = False
            else:
                self._ledger.add(link)

    def _read_end_again(self, settles_within_seconds: float) -> None:
        """What has come meanwhile; again for a while where a transaction may not show on all topics yet."""
        steps, patience_ends = self._topics.steps, time.monotonic() + settles_within_seconds
        while True:
            self._end.read_again(*self._stored.read_later(steps, 0, self._end.position))
            if not self._end.is_passed or time.monotonic() >= patience_ends:
                return
            time.sleep(_seconds_between_looks)

    def _compare_head(self, kept: str | None) -> Head:
        digests = self._chain.digests
        head = digests[-1].hex() if digests else None
        if kept is None:
            return Head(sha256=head)
        wanted = bytes.fromhex(kept)
        if wanted not in digests:
            self._checks.chain.find(
                "the head kept elsewhere is not in the chain: the ledger was cut or rewritten, or it is another run's",
                expected=kept,
                found=f"{len(digests)} record(s) up to {head}",
            )
            return Head(sha256=head, kept=kept)
        return Head(sha256=head, kept=kept, is_found=True, num_later=len(digests) - 1 - digests.index(wanted))

    def _what_retention_took(self) -> Iterator[Missing]:
        topics = self._topics
        consequences = {
            topics.steps: "the chain is checked from the first record left; what stood before it is not, nor are "
            "dispositions, versions and settings that it held",
            topics.samples: "these records are not checked",
            topics.rewards: "whether samples that came without a reward have that one is not checked where it is gone",
            topics.turns: "whether turns were on the log before they were used is not checked where they are gone",
            topics.weights: "notices that stood there are not checked",
            topics.evaluations: "evaluations that stood there are not checked",
            topics.dead_letters: "whether what was judged dead has its dead letter is not checked where it is gone",
            topics.control: "whose the grants were that stood there is not checked",
            topics.tasks: "tasks that stood there, and what follows up to the next fence, are not checked",
        }
        if not self._ledger.config.has_late_rewards:
            del consequences[topics.rewards]
        if not self._ledger.config.keeps_turns:
            del consequences[topics.turns]
        for topic, consequence in consequences.items():
            yield from self._stored.missing(topic, consequence)

    def _undone_steps(self) -> Iterator[Missing]:
        """Steps that cannot be checked as a whole, because samples of theirs are missing or are others."""
        incomplete = dict(self._samples.batches.conclude())
        if incomplete:
            versions = ", ".join(map(str, sorted(incomplete)[:10])) + (" ..." if len(incomplete) > 10 else "")  # noqa: PLR2004
            yield Missing(
                what=f"{sum(incomplete.values())} sample(s) of the steps to version {versions}",
                consequence=f"{len(incomplete)} step(s) cannot be done again from version 0; "
                "a later checkpoint is needed",
            )

    def _notes_on_manifests(self) -> Iterator[str]:
        if not self._checks.manifest.num_checked:
            yield f"no manifest in {runs_topic(self._topics.prefix)}: only the configuration in genesis is known"

    def _notes(self) -> Iterator[str]:
        unreadable = {
            self._topics.weights: self._weights.num_unreadable,
            self._topics.tasks: self._tasks.num_unreadable,
            self._topics.control: self._orders.num_unreadable,
            self._topics.dead_letters: self._dead_letters.num_unreadable,
            self._topics.rewards: self._late_rewards.num_unreadable,
            self._topics.turns: self._kept_turns.num_unreadable,
        }
        for topic, count in unreadable.items():
            if count:
                yield f"{count} record(s) of {topic} cannot be decoded; readers pass them over"
        if self._reissues.num_foreign:
            yield (
                f"{self._reissues.num_foreign} task(s) have a seed that does not follow from run, group, replica and "
                "attempt: no dispatcher of this run issued them"
            )
        if self._reissues.disputed:
            yield (
                f"{len(self._reissues.disputed)} attempt(s) are ordered by several tasks that differ: somebody else "
                "than a dispatcher wrote to tasks, and these reissues are not checked"
            )
        unexpected = self._weights.unexpected
        if unexpected:
            shown = "; ".join(unexpected[:_shown_unexpected])
            yield f"{len(unexpected)} worker(s) say they serve weights that the ledger does not know: {shown}"
        for writer, count in sorted(self._other_writers.num_trained.items()):
            yield f"{count} trained sample(s) are by {writer}, which is none of the run's workers"
        for topic, count in sorted(self._dead_letters.num_by_topic.items()):
            yield f"{count} dead letter(s) of {topic}"
        if self._ledger.genesis is not None and self._ledger.config.groups_per_batch is None:
            yield "the manifest in genesis names no groups.groups_per_batch: sizes and quotas are not checked"
        if self._ledger.genesis is not None:
            yield _where_it_replays(self._ledger.genesis.versions)


def _where_it_replays(versions: Mapping[str, str]) -> str:
    """On which processors a replay of the run can be expected to give its weights; `versions` are those of genesis."""
    level = versions.get("instructions pinned to", "machine")
    if level != "machine":
        return (
            f"trained with instructions pinned to {level}: a replay gives the same weights on every processor that has "
            "them"
        )
    processor = versions.get("processor")
    if processor is None:
        return (
            "genesis does not say which processor trained the run: a replay on another one may differ, which shows "
            "nothing"
        )
    return f"trained on {processor}: a replay can be equal there; elsewhere weights differ in their last bits"
