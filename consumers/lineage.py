"""Where something in a run comes from and what became of it: samples, steps, policy versions, prompts.

Consumes `steps`, `tasks`, `samples`, `rewards`, `evaluations` and `weights`, from their beginnings to their ends at the
time of the call; produces nothing. Answers are made of what JSON has. Records are picked by their Kafka headers and
decoded only when picked. Of records that retention deleted the answer says what the ledger knows. The ledger is gone
over once, and once more for an answer that needs verdicts: of those only the ones asked for are held.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from consumers.ledger import StoredLedger
from consumers.named_weights import read_named_weights
from consumers.readable import read_tasks
from consumers.reason_words import reason_in_words
from consumers.references import read_rewards
from rollog.kernel.broker.reading import read_topic
from rollog.kernel.errors import ConfigError, LedgerError
from rollog.rules.late_rewards import rewarded
from rollog.rules.ledger_state import LedgerState
from schemas import (
    Disposition,
    Kind,
    LedgerKind,
    Rebase,
    RolloutTask,
    Sample,
    Step,
    sample_id,
)
from schemas.codec import SchemaError, decode_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from consumers.ledger import LedgerEntry
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.kernel.broker.topics import RunTopics
    from schemas import Fork, Prompt, Verdict

Answer = dict[str, Any]
Place = tuple[int, int]

_most_listed = 50
_made_versions = (LedgerKind.GENESIS, LedgerKind.STEP, LedgerKind.REBASE)


@dataclass(frozen=True, slots=True)
class _Judged:
    verdict: Verdict
    version: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What made a version, and at which offset of the ledger that stands."""

    by: LedgerKind
    sequence: int
    offset: int
    not_reproduced: int | None


@dataclass(slots=True)
class Lineage:
    """Answers questions about one run. Raises LedgerError for a broken chain, ConfigError for what it does not have."""

    broker: Broker
    topics: RunTopics
    state: LedgerState = field(default_factory=LedgerState)
    _ledger: StoredLedger = field(init=False)
    _made: dict[int, _Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ledger = StoredLedger(self.broker, self.topics)
        for entry in self._ledger:
            record = entry.record
            self.state.apply(record, entry.digest)
            if record.kind in _made_versions:
                self._made[record.version] = _Made(
                    by=record.kind,
                    sequence=record.sequence,
                    offset=entry.offset,
                    not_reproduced=record.body.version_not_reproduced
                    if isinstance(record.body, Rebase)
                    else None,
                )

    def sample(self, wanted: str, kind: Kind | None = None) -> Answer:
        """Records of that sample with their dispositions, its tasks and prompt, and all attempts at its replica.

        Evaluations count their groups from 0 again, so a training sample and samples of evaluations may share one id.
        `kind` says which is meant; without one the training sample is, and those of evaluations where there is none.
        Of the others the answer has the number, by kind.
        """
        found = list(self._results(lambda record: _header(record, "sample_id") == wanted))
        chosen = kind or self._usual_kind(found, wanted)
        records = [record for record in found if self._is_training(record) is (chosen is Kind.TRAINING)]
        num_others = len(found) - len(records)
        other = Kind.EVALUATION if chosen is Kind.TRAINING else Kind.TRAINING
        siblings = {
            (record.topic, _header(record, "group_id"), _header(record, "replica")) for record in records
        }
        attempts = self._short_results(
            lambda record: (record.topic, _header(record, "group_id"), _header(record, "replica")) in siblings
        )
        known = {(record.partition, record.offset) for record in records if self._is_training(record)}
        judged = self._judged([*records, *attempts], sample=wanted if chosen is Kind.TRAINING else None)
        deleted = [
            each for place, each in judged.items() if each.verdict.sample_id == wanted and place not in known
        ]
        if not records and not deleted:
            raise self._no_sample(wanted, kind, num_others)
        task_ids = {_header(record, "task_id") for record in records}
        tasks = [
            (record, task)
            for record, task in self._tasks()
            if task.kind is chosen and (task.task_id in task_ids or (deleted and _orders(task, wanted)))
        ]
        return {
            "sample_id": wanted,
            "kind": chosen.value,
            "other_kinds": {other.value: num_others} if num_others else {},
            "prompt": next((_prompt(task.prompt) for _, task in tasks), None),
            "records": [self._record(record, judged) for record in records]
            + [_deleted(each) for each in deleted],
            "tasks": [_task(record, task) for record, task in tasks],
            "attempts": [self._attempt(record, judged) for record in attempts],
        }

    def disposition(self, wanted: Disposition) -> Answer:
        """The first samples of a disposition in the ledger's order, why they got it, and how many more there are."""
        listed: list[_Judged] = []
        num_samples = 0
        for entry in self._ledger:
            for verdict in entry.record.verdicts:
                if verdict.disposition is wanted:
                    num_samples += 1
                    if num_samples <= _most_listed:
                        listed.append(_Judged(verdict, entry.record.version, entry.record.sequence))
        groups = {each.verdict.group_id for each in listed}
        prompts = {
            task.group_id: task.prompt.prompt_id
            for _, task in self._tasks()
            if task.kind is Kind.TRAINING and task.group_id in groups
        }
        return {
            "disposition": wanted.value,
            "num_samples": num_samples,
            "samples": [_listed(each, prompts.get(each.verdict.group_id)) for each in listed],
            "num_more": num_samples - len(listed),
        }

    def step(self, number: int) -> Answer:
        """What one training step consumed, in order, and made."""
        entry, body = self._step(number)
        verdicts = entry.record.verdicts
        trained = [verdict for verdict in verdicts if verdict.disposition is Disposition.TRAINED]
        others = Counter(
            verdict.disposition.value
            for verdict in verdicts
            if verdict.disposition is not Disposition.TRAINED
        )
        return {
            "step": number,
            "ledger_offset": entry.offset,
            "ledger_sequence": entry.record.sequence,
            "weights_sha256_before": body.weights_sha256_before,
            "weights_sha256": body.weights_sha256,
            "alpha": body.alpha,
            "revision": body.revision,
            "seed": body.seed,
            "reward_mean": body.reward_mean,
            "num_tokens": body.num_tokens,
            "losses": list(body.losses),
            "gradient_norms": list(body.gradient_norms),
            "learning_rates": list(body.learning_rates),
            "samples": [
                {
                    "position": position,
                    "sample_id": verdict.sample_id,
                    "partition": verdict.partition,
                    "offset": verdict.offset,
                    "lag": verdict.lag,
                }
                for position, verdict in enumerate(trained)
            ],
            "other_dispositions": dict(others),
        }

    def version(self, number: int) -> Answer:
        """What made a policy version, its file, and the versions it came from, newest first."""
        if number not in self._made:
            raise ConfigError(
                f"run {self.topics.run} has no version {number}; there are 0 to {self.state.version}"
            )
        named = read_named_weights(self.broker, self.topics, self.state.weights)
        notice = next((notice for notice in reversed(named.notices) if notice.version == number), None)
        return {
            **self._version(number),
            "file": None if notice is None else notice.name,
            "is_pruned": number in named.pruned,
            "num_bytes": None if notice is None else notice.num_bytes,
            "ancestors": [self._version(ancestor) for ancestor in range(number - 1, -1, -1)],
        }

    def prompt(self, prompt_id: str) -> Answer:
        """Every group made of a prompt, with every attempt."""
        tasks = [(record, task) for record, task in self._tasks() if task.prompt.prompt_id == prompt_id]
        if not tasks:
            raise ConfigError(f"run {self.topics.run} issued no task for a prompt {prompt_id!r}")
        groups = {(task.kind.value, task.group_id): task for _, task in tasks}
        attempts: dict[tuple[str, int], list[Answer]] = {key: [] for key in groups}
        wanted = {(kind, str(group)): (kind, group) for kind, group in groups}
        records = self._short_results(
            lambda record: (_header(record, "kind"), _header(record, "group_id")) in wanted
        )
        judged = self._judged(records)
        for record in records:
            key = wanted[(_header(record, "kind"), _header(record, "group_id"))]
            attempts[key].append(self._attempt(record, judged))
        return {
            "prompt": _prompt(tasks[0][1].prompt),
            "groups": [
                {
                    "kind": kind,
                    "group_id": group,
                    "outcome": self._outcome(kind, group),
                    "num_tasks": sum(task.kind.value == kind and task.group_id == group for _, task in tasks),
                    "attempts": found,
                }
                for (kind, group), found in sorted(attempts.items())
            ],
        }

    def _usual_kind(self, found: Iterable[Record], wanted: str) -> Kind:
        """Training where a record or, of one that was deleted, a verdict bears the id."""
        is_training = any(map(self._is_training, found)) or self._judged([], sample=wanted)
        return Kind.TRAINING if is_training else Kind.EVALUATION

    def _no_sample(self, wanted: str, kind: Kind | None, num_others: int) -> ConfigError:
        named = "sample" if kind is None else f"{kind.value} sample"
        others = (
            f"; {num_others} of the other kind have this id" if num_others else "; ids are like g12.r3.a0"
        )
        return ConfigError(f"run {self.topics.run} has no {named} {wanted!r}{others}")

    def _step(self, number: int) -> tuple[LedgerEntry, Step]:
        made = self._made.get(number)
        if made is not None and made.by is LedgerKind.STEP:
            entry = self._ledger.at(made.offset)
            if isinstance(entry.record.body, Step):
                return entry, entry.record.body
        raise ConfigError(
            f"run {self.topics.run} has no step {number}; its newest version is {self.state.version}"
        )

    def _outcome(self, kind: str, group: int) -> str | None:
        ending = self.state.closed_groups.ending(group) if kind == "training" else None
        return None if ending is None else ending[0].value

    def _version(self, number: int) -> Answer:
        made = self._made[number]
        return {
            "version": number,
            "made_by": made.by.value,
            "weights_sha256": self.state.weights[number],
            "ledger_sequence": made.sequence,
            "not_reproduced": made.not_reproduced,
        }

    def _judged(self, records: Iterable[Record], sample: str | None = None) -> dict[Place, _Judged]:
        """What the ledger says of these records of samples, and of every record that it calls `sample`."""
        places = {(record.partition, record.offset) for record in records if self._is_training(record)}
        return {
            (verdict.partition, verdict.offset): _Judged(verdict, entry.record.version, entry.record.sequence)
            for entry in self._ledger
            for verdict in entry.record.verdicts
            if (verdict.partition, verdict.offset) in places or verdict.sample_id == sample
        }

    def _is_training(self, record: Record) -> bool:
        return record.topic == self.topics.samples

    def _results(self, is_wanted: Callable[[Record], bool]) -> Iterator[Record]:
        """The wanted records of samples and evaluations."""
        for topic in (self.topics.samples, self.topics.evaluations):
            yield from (record for record in self._all(topic) if is_wanted(record))

    def _short_results(self, is_wanted: Callable[[Record], bool]) -> list[Record]:
        """The same without their values: more may be wanted than fit in memory."""
        return [replace(record, value=None) for record in self._results(is_wanted)]

    def _tasks(self) -> Iterator[tuple[Record, RolloutTask]]:
        return read_tasks(self.broker, self.topics.tasks, client_id="lineage")

    def _all(self, topic: str) -> Iterator[Record]:
        return read_topic(self.broker, topic, client_id="lineage")

    def _disposition(self, record: Record, judged: Mapping[Place, _Judged]) -> Answer | None:
        found = judged.get((record.partition, record.offset))
        return None if found is None or not self._is_training(record) else _disposition(found)

    def _record(self, record: Record, judged: Mapping[Place, _Judged]) -> Answer:
        """One record of samples in full, but for its tokens."""
        found = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "appended_unix_ms": record.timestamp_ms,
            "disposition": self._disposition(record, judged),
        }
        try:
            sample = decode_as(Sample, record.value or b"")
        except SchemaError as error:
            return {**found, "unreadable": str(error)}
        known = judged.get((record.partition, record.offset)) if self._is_training(record) else None
        return {**found, **_sample(sample if known is None else self._rewarded(sample, known.verdict))}

    def _rewarded(self, sample: Sample, verdict: Verdict) -> Sample:
        """The sample with the reward that it got late, if it did and that can still be read."""
        reference = verdict.late_reward
        if reference is None:
            return sample
        try:
            with self.broker.consumer(client_id="lineage") as consumer:
                found = read_rewards(consumer, self.topics.rewards, [reference])
        except LedgerError:
            return sample
        return rewarded(sample, found[reference.offset])

    def _attempt(self, record: Record, judged: Mapping[Place, _Judged]) -> Answer:
        """One record of samples in short, by its headers."""
        disposition = self._disposition(record, judged)
        return {
            "sample_id": _header(record, "sample_id"),
            "status": _header(record, "status"),
            "task_id": _header(record, "task_id"),
            "partition": record.partition,
            "offset": record.offset,
            "disposition": None if disposition is None else disposition["disposition"],
            "reason": None if disposition is None else disposition["reason"],
            "why": None if disposition is None else disposition["why"],
            "step": None if disposition is None else disposition["step"],
        }


def _header(record: Record, name: str) -> str:
    return (record.header(name) or b"").decode("utf-8", errors="replace")


def _disposition(judged: _Judged) -> Answer:
    verdict = judged.verdict
    is_trained = verdict.disposition is Disposition.TRAINED
    return {
        "disposition": verdict.disposition.value,
        "reason": verdict.reason,
        "why": reason_in_words(verdict.disposition, verdict.reason),
        **({} if verdict.late_reward is None else {"late_reward_offset": verdict.late_reward.offset}),
        "lag": verdict.lag,
        "step": judged.version if is_trained else None,
        "ledger_sequence": judged.sequence,
    }


def _listed(judged: _Judged, prompt_id: str | None) -> Answer:
    verdict = judged.verdict
    return {
        "sample_id": verdict.sample_id,
        "group_id": verdict.group_id,
        "prompt_id": prompt_id,
        "reason": verdict.reason,
        "why": reason_in_words(verdict.disposition, verdict.reason),
        "partition": verdict.partition,
        "offset": verdict.offset,
        "ledger_sequence": judged.sequence,
    }


def _deleted(judged: _Judged) -> Answer:
    verdict = judged.verdict
    return {
        "partition": verdict.partition,
        "offset": verdict.offset,
        "disposition": _disposition(judged),
        "unreadable": "the record was deleted, or its headers do not name it",
    }


def _sample(sample: Sample) -> Answer:
    return {
        "status": sample.status.value,
        "kind": sample.kind.value,
        "task_id": sample.task_id,
        "group_id": sample.group_id,
        "replica": sample.replica,
        "attempt": sample.attempt,
        "prompt_id": sample.prompt_id,
        "worker_id": sample.worker_id,
        "grant_id": sample.grant_id,
        "epoch": sample.epoch,
        "seed": sample.seed,
        "reward": sample.reward,
        "reward_components": sample.reward_components,
        "turn_rewards": list(sample.turn_rewards),
        "num_tokens": sample.num_sampled_tokens,
        "wasted_tokens": sample.wasted_tokens,
        "finish_reason": None if sample.finish_reason is None else sample.finish_reason.value,
        "cancel_reason": sample.cancel_reason,
        "error": None if sample.error_class is None else f"{sample.error_class}: {sample.error_message}",
        "segments": [asdict(segment) for segment in sample.segments],
        "forks": _forks(sample),
        "turns": [asdict(turn) for turn in sample.turns],
        "payload": None if sample.payload is None else asdict(sample.payload),
        "response_text": sample.response_text,
    }


def _forks(sample: Sample) -> list[Answer]:
    """The forks; of a large sample, whose arrays are in its object, the record has only the lengths."""
    lengths = (None,) * len(sample.forks) if sample.payload is None else sample.payload.num_tokens[1:]
    return [_fork(fork, num) for fork, num in zip(sample.forks, lengths, strict=False)]


def _fork(fork: Fork, num_tokens: int | None) -> Answer:
    return {
        "parent": fork.parent,
        "shared": fork.shared,
        "reason": fork.reason,
        "num_context_tokens": len(fork.context) if num_tokens is None else None,
        "num_tokens": len(fork.token_ids) if num_tokens is None else num_tokens,
        "segments": [asdict(segment) for segment in fork.segments],
    }


def _orders(task: RolloutTask, of_sample: str) -> bool:
    """Whether a task was to make that training sample."""
    return task.kind is Kind.TRAINING and sample_id(task.group_id, task.replica, task.attempt) == of_sample


def _task(record: Record, task: RolloutTask) -> Answer:
    return {
        "task_id": task.task_id,
        "kind": task.kind.value,
        "prompt_id": task.prompt.prompt_id,
        "partition": record.partition,
        "offset": record.offset,
        "epoch": task.epoch,
        "grant_id": task.grant_id,
        "group_id": task.group_id,
        "replica": task.replica,
        "attempt": task.attempt,
        "issue_reason": task.issue_reason.value,
        "issued_version": task.issued_version,
        "min_version": task.min_version,
        "protected": task.protected,
        "seed": task.seed,
    }


def _prompt(prompt: Prompt) -> Answer:
    return {"prompt_id": prompt.prompt_id, "text": prompt.text, "messages": prompt.messages_json}
