"""A whole run in one process: the real dispatcher, workers and trainer as threads over any broker.

The model is the demo's with random weights; engine and trainer are transformers and DeepSpeed.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers.utils import logging as transformers_logging

from consumers.audit.auditor import audit_run, settle_seconds
from consumers.ledger import read_ledger
from consumers.progress import ProgressView, RunProgress
from producers.dispatcher.role import run_dispatcher
from producers.rollout.role import run_rollout
from rollog.demo.model import new_model, save_tokenizer
from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from rollog.rules.headers import SampleLimits
from rollog.rules.reading import read_sample
from rollog.run.creation import create_run
from rollog.run.role_settings import dispatcher_settings, rollout_settings, trainer_settings
from rollog.settings.settings import Settings
from schemas import Sample, Status, Step
from schemas.codec import decode_as
from support.waiting import wait_until
from trainer.role import run_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from consumers.audit.report import AuditReport
    from rollog.kernel.broker.ports import Broker, Record
    from rollog.rules.headers import SampleHeader
    from schemas import Disposition, LedgerRecord

closing_seconds = 300.0
"""A start of every role on a machine with other work included."""


def make_model(directory: Path) -> Path:
    """The demo's model and tokenizer, untrained."""
    directory.mkdir(parents=True, exist_ok=True)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    new_model(0).save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def make_prompts(path: Path, num_prompts: int = 40) -> Path:
    """Prompts of the demo's form."""
    rows = [{"prompt": f"{1 + n % 9} {1 + n % 7} {1 + n % 5} : {n % 27} ="} for n in range(num_prompts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small_settings(home: Path, name: str, **sections: dict[str, Any]) -> Settings:
    """A run of a few small steps; `sections` override single keys."""
    values: dict[str, dict[str, Any]] = {
        "run": {"name": name, "prefix": "rollog-test", "num_steps": 3},
        "broker": {"samples_partitions": 2, "max_workers": 3},
        "model": {"path": str(make_model(home / "model")), "max_context_tokens": 64},
        "groups": {"groups_per_batch": 2, "group_size": 4},
        "freshness": {"alpha": 1.0},
        "weights": {"uri": (home / "weights").as_uri()},
        "data": {"train": str(make_prompts(home / "prompts.jsonl")), "held_out": None},
        "sampling": {"max_tokens": 8},
        "evaluation": {"every_steps": 0, "num_prompts": 4, "sampled": False},
        "reward": {"function": "support.loop_rewards:even_words", "num_processes": 0},
        "rollout": {"engine": "transformers", "capacity": 8},
        "trainer": {"num_minibatches": 2, "checkpoint_every_steps": 2},
    }
    for section, keys in sections.items():
        values[section] = values.get(section, {}) | keys
    return Settings.model_validate(values)


def settings_file(path: Path, settings: Settings) -> Path:
    """What differs from the defaults, as a configuration file."""
    lines = []
    for section, keys in settings.model_dump(mode="json", exclude_none=True, exclude_defaults=True).items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in keys.items()]
    path.write_text("\n".join(lines))
    return path


def _toml_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@dataclass
class Role:
    """One role as a thread."""

    thread: threading.Thread
    stop: threading.Event
    error: list[BaseException] = field(default_factory=list)

    def end(self) -> None:
        """Stop gracefully and wait."""
        self.stop.set()
        self.thread.join(closing_seconds)
        assert not self.thread.is_alive(), self.thread.name


class WholeRun:
    """One run with the roles a test starts."""

    def __init__(self, broker: Broker, home: Path, settings: Settings) -> None:
        self.broker = broker
        self.trainer_metrics = Metrics()
        self.home = home
        self.settings = settings
        self.topics = RunTopics(settings.run.prefix, settings.run_name)
        self.roles: list[Role] = []
        self.manifest = create_run(broker, settings)

    def dispatcher(self) -> Role:
        return self._start(
            "dispatcher",
            lambda stop: run_dispatcher(
                dispatcher_settings(self.settings, self.home), self.broker, Metrics(), stop
            ),
        )

    def worker(self) -> Role:
        """A worker, started once the trainer is up: two threads cannot make models at the same time.

        While a model is made, its dtype is that of every tensor the process makes. Of several workers each waits until
        those before it serve (`wait_for_serving`); where the run's dtype is not float32, the dispatcher waits too.
        """
        self.wait_for_version(0)
        return self._start(
            "rollout",
            lambda stop: run_rollout(
                rollout_settings(self.settings, self.manifest, self.home, "rollout"),
                self.broker,
                Metrics(),
                stop,
            ),
        )

    def trainer(self, amendment: Mapping[str, object] | None = None) -> Role:
        return self._start(
            "trainer",
            lambda stop: run_trainer(
                trainer_settings(self.settings, self.manifest, self.home),
                self.broker,
                self.trainer_metrics,
                stop,
                amendment=amendment,
            ),
        )

    def ledger(self) -> list[LedgerRecord]:
        return [entry.record for entry in read_ledger(self.broker, self.topics)]

    def wait_for_version(self, version: int, within_seconds: float = closing_seconds) -> None:
        """Wait until the ledger holds this version."""
        self._wait_to_see(lambda view: view.version >= version, f"version {version}", within_seconds)

    def wait_for_serving(self, num_workers: int) -> None:
        """Wait until so many workers serve a version: they have made their models."""

        def are_serving(view: ProgressView) -> bool:
            return sum(worker.served_version is not None for worker in view.workers) >= num_workers

        self._wait_to_see(are_serving, f"{num_workers} workers that serve", closing_seconds)

    def view(self) -> ProgressView:
        """What anybody who follows the run sees at its end."""
        num_seats = self.settings.environment.seats
        with RunProgress(self.broker, self.topics, num_seats=num_seats) as progress:
            wait_until(lambda: progress.poll(0.1).is_closed, message="the close")
            return progress.poll(0.1)

    def to_its_end(self) -> list[LedgerRecord]:
        """Start one role of each kind and wait until the run has closed; returns the ledger."""
        self.dispatcher()
        self.trainer()
        self.worker()
        return self.wait_until_closed()

    def wait_until_closed(self, within_seconds: float = closing_seconds) -> list[LedgerRecord]:
        """Wait until every role has ended by itself; returns the ledger."""
        wait_until(self._all_ended, within_seconds, "every role to end")
        self.raise_errors()
        return self.ledger()

    def samples(self) -> list[SampleHeader]:
        """Headers of everything in `samples`, by place."""
        limits = SampleLimits(
            num_partitions=self.settings.broker.samples_partitions,
            num_replicas=99,
            temperature=self.settings.sampling.temperature,
        )
        headers = [read_sample(record, limits)[0] for record in self._sample_records()]
        return sorted(headers, key=lambda header: header.place)

    def read_samples(self) -> list[Sample]:
        """Everything in `samples`, decoded."""
        return [decode_as(Sample, record.value or b"") for record in self._sample_records()]

    def finished_samples(self) -> list[Sample]:
        """The finished ones of them."""
        return [sample for sample in self.read_samples() if sample.status is Status.FINISHED]

    def audited(
        self, *, head: str | None = None, settles_within_seconds: float = settle_seconds
    ) -> AuditReport:
        """What the audit says of everything so far, in which it finds nothing."""
        store = WeightsStore(self.manifest.weights_uri)
        report = audit_run(
            self.broker, self.topics, store, head=head, settles_within_seconds=settles_within_seconds
        )
        assert report.is_clean, "\n".join(report.lines())
        return report

    def _sample_records(self) -> list[Record]:
        partitions = range(self.settings.broker.samples_partitions)
        with self.broker.consumer(client_id="reader") as consumer:
            return list(read_to_end(consumer, self.topics.samples, *partitions))

    def raise_errors(self) -> None:
        for role in self.roles:
            if role.error:
                raise role.error[0]

    def _wait_to_see(
        self, is_seen: Callable[[ProgressView], bool], message: str, within_seconds: float
    ) -> None:
        def reached() -> bool:
            self.raise_errors()
            return is_seen(progress.poll(0.1))

        with RunProgress(self.broker, self.topics) as progress:
            wait_until(reached, within_seconds, message)

    def _all_ended(self) -> bool:
        self.raise_errors()
        return not any(role.thread.is_alive() for role in self.roles)

    def _start(self, name: str, target: Callable[[threading.Event], None]) -> Role:
        stop = threading.Event()
        error: list[BaseException] = []

        def run() -> None:
            try:
                target(stop)
            except BaseException as caught:  # noqa: BLE001 - handed to the test
                error.append(caught)

        role = Role(threading.Thread(target=run, name=name), stop, error)
        self.roles.append(role)
        role.thread.start()
        return role


@contextmanager
def whole_run(broker: Broker, home: Path, settings: Settings) -> Iterator[WholeRun]:
    """A run whose roles have all ended afterwards."""
    run = WholeRun(broker, home, settings)
    try:
        yield run
    finally:
        for role in run.roles:
            role.end()


def verdict_counts(ledger: Sequence[LedgerRecord]) -> Counter[Disposition]:
    """How often each disposition was given."""
    return Counter(verdict.disposition for record in ledger for verdict in record.verdicts)


def check_logprobs_of_first_step(ledger: Sequence[LedgerRecord]) -> None:
    """What the trainer computes for the sampled tokens is what the engine said, turn by turn."""
    first = next(record.body for record in ledger if isinstance(record.body, Step))
    assert 0.99 < first.statistics["first_effective_sample_size"] <= 1 + 1e-6
