"""rollog from Python: what `import rollog` offers, over the same code as the commands.

`up` does a run, as `rollog up` does. `open_run` opens a recorded one, on its broker or in an archive. docs/python.md
shows how. Torch, transformers, Arrow, pandas and `datasets` are imported by what needs them, when it is called.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.recorded_steps import (
    StepFollower,
    TrainedStep,
    step_columns,
    step_rows,
    verdict_columns,
    verdict_rows,
)
from consumers.tables import Table
from consumers.trained_samples import sample_columns, trained_samples
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError, DataError, RollogError, RunNotFound
from rollog.kernel.logs import get_logger, logging_restored
from rollog.run.auditing import audit_opened
from rollog.run.connection import broker_at
from rollog.run.local_run import RoleFlags, run_directory
from rollog.run.model_export import ExportedModel, export_model
from rollog.run.names import checked_name
from rollog.run.recorded_run import open_run as open_recorded_run
from rollog.run.request import RecordedRunRequest, RunRequest
from rollog.run.reward_reference import refuse_within_a_role, reward_reference, search_path
from rollog.run.step_listener import StepListener
from rollog.run.summary import summarize, write_summary
from rollog.run.whole_run import Audience, whole_run
from rollog.settings.changes import as_text
from rollog.settings.settings import Settings
from rollog.settings.sources import key_paths, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from consumers.audit.report import AuditReport
    from rollog.run.display import Display
    from rollog.run.recorded_run import RecordedRun
    from rollog.run.view import RunFacts
else:
    from consumers.audit.report import AuditReport

__all__ = [
    "AuditReport",
    "ConfigError",
    "DataError",
    "ExportedModel",
    "RollogError",
    "Run",
    "RunNotFound",
    "RunResult",
    "Settings",
    "Table",
    "TrainedStep",
    "open_run",
    "up",
]

log = get_logger("api")

_poll_seconds = 0.25
_origin = "the settings given"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended that `up` started.

    `is_over` is False where somebody stopped it: `rollog resume NAME` goes on. `num_steps` were trained. `summary` has
    the figures of `summary.json`, which lies at `summary_path`.
    """

    name: str
    is_over: bool
    num_steps: int
    summary: dict[str, object] = field(repr=False)
    summary_path: Path
    _home: Path = field(repr=False)
    _broker: str | None = field(repr=False)
    _prefix: str = field(repr=False)

    def open(self) -> AbstractContextManager[Run]:
        """The same as `open_run` with the name, state directory and broker of this run."""
        return open_run(
            self.name, home=self._home, broker=self._broker, settings={"run": {"prefix": self._prefix}}
        )


class Run:
    """A recorded run, live or over, for as long as the block of `open_run` lasts.

    Each table reads the run anew. Reading raises LedgerError, a RollogError, where the ledger was altered.
    """

    def __init__(self, recorded: RecordedRun, home: Path) -> None:
        """Made by `open_run`."""
        self._recorded = recorded
        self._home = home

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._recorded.topics.run

    @property
    def settings(self) -> Settings:
        """The settings that the run began with, by section and key: `run.settings.groups.group_size`."""
        return self._recorded.settings

    def steps(self) -> Table:
        """The training steps, one row each."""
        recorded = self._recorded
        return Table(step_columns, lambda: step_rows(recorded.broker, recorded.topics))

    def follow(self) -> Iterator[TrainedStep]:
        """Every step, the first one first, then those to come, until the run is over; in an archive until its end.

        Waits for as long as the run stands still. Raises LedgerError for an altered ledger, BrokerError when the broker
        is silent.
        """
        recorded = self._recorded
        with StepFollower(recorded.broker, recorded.topics) as follower:
            while not follower.is_over:
                yield from follower.poll(_poll_seconds)
                if recorded.is_archive and follower.is_at_end:
                    return

    def samples(self) -> Table:
        """The trained samples in the order of training: tokens, texts, reward, advantage, versions.

        Needs the records of the samples: those that were pruned raise LedgerError.
        """
        from rollog.run.recorded_advantages import RecordedAdvantages  # noqa: PLC0415  # it may load the trainer

        recorded, advantages = self._recorded, RecordedAdvantages(self._recorded.settings)
        return Table(
            sample_columns,
            lambda: trained_samples(recorded.broker, recorded.topics, recorded.store, advantages=advantages),
        )

    def verdicts(self) -> Table:
        """What became of every sample: trained, filtered, stale and so on, with its place on the log."""
        recorded = self._recorded
        return Table(verdict_columns, lambda: verdict_rows(recorded.broker, recorded.topics))

    def export_model(self, directory: str | Path, version: int | None = None) -> ExportedModel:
        """Write a version, the newest without one, as a Hugging Face model directory, checked against the ledger.

        `directory` is not there yet, or is empty. Raises ConfigError for the directory and for a version that there is
        not, DataError and WeightsError for a model that cannot be written.
        """
        return export_model(self._recorded, self._home, Path(directory), version=version)

    def audit(self) -> AuditReport:
        """Check that nothing was lost, trained twice or altered; `is_clean` and `lines()` of the report say it."""
        return audit_opened(self._recorded)


def up(
    settings: Mapping[str, object] | str | Path | None = None,
    *,
    name: str | None = None,
    reward: Callable[..., object] | str | None = None,
    home: str | Path | None = None,
    broker: str | None = None,
    num_workers: int = 1,
    on_step: Callable[[TrainedStep], object] | None = None,
    preflight: bool = True,
) -> RunResult:
    """Do a whole run on this machine, as `rollog up` does, and return when it is over or was stopped.

    `settings` are sections of keys as in a TOML file, or the path of one; without any, the demo's. Variables
    ROLLOG_SECTION__KEY win over them, and the arguments over these. `name` is new; left out, one is made up. `reward`
    is `"module:function"`, or a function of a module. `home` is the state directory, ROLLOG_HOME or `.rollog` without
    it. `broker` is `"host:port"`; without it an embedded Apache Kafka is started. `num_workers` is 1 at least.
    `on_step` is called with each finished step; what it raises stops the roles, and `up` raises it.

    Call it in the main thread: Ctrl-C stops the run gracefully. Nothing is printed; warnings are Python's, and what is
    logged goes to `HOME/runs/NAME/up.log`.

    Raises ConfigError and DataError for what cannot run, RunExists for a name that is taken, BrokerError, and
    ChildFailed when a process that is needed keeps ending; each is a RollogError.
    """
    refuse_within_a_role()
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "rollog.up was called in a thread: call it in the main thread, where signals arrive"
        )
    chosen = _settings(settings, name=name, reward=reward, broker=broker)
    place = _home(home)
    with logging_restored():
        ended = whole_run(
            chosen,
            place,
            num_workers=num_workers,
            audience=Audience(say=log.info, warn=_warn, report=_report),
            has_preflight=preflight,
            flags=RoleFlags(environment=search_path(*chosen.reward.user_functions)),
            display=_display(chosen, on_step),
        )
    summary = summarize(
        ended.settings, ended.view, kafka_version=ended.kafka_version, up_seconds=ended.up_seconds
    )
    return RunResult(
        name=ended.settings.run_name,
        is_over=ended.view.is_closed,
        num_steps=max(ended.view.version, 0),
        summary=summary,
        summary_path=write_summary(summary, run_directory(ended.settings, place)),
        _home=place,
        _broker=ended.settings.broker.bootstrap_servers,
        _prefix=ended.settings.run.prefix,
    )


@contextmanager
def open_run(
    name: str | None = None,
    *,
    home: str | Path | None = None,
    broker: str | None = None,
    archive: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Run]:
    """Open a recorded run, live or over, for as long as the block lasts.

    It is on `broker`, or on the embedded one of `home`, which runs for that time if it does not yet; or it is in
    `archive`, a file of `rollog export`. `name` may be left out where there is one run. `settings` are addresses and
    paths that differ here, such as `{"model": {"path": "..."}}` for the export of an archived run's model.

    Raises RunNotFound, ConfigError, BrokerUnreachable, and ArchiveError for a file that is no archive or is damaged.
    """
    place = _home(home)
    given = key_paths(settings or {}, _origin)
    assignments = tuple(each for path, value in given.items() for each in _assignments(path, value))
    common = RunRequest(config=None, home=place, assignments=assignments, run=name, broker=broker)
    request = RecordedRunRequest(
        run=name, archive=None if archive is None else Path(archive).expanduser(), common=common
    )
    with open_recorded_run(request) as recorded:
        yield Run(recorded, place.resolve())


def _settings(
    settings: Mapping[str, object] | str | Path | None,
    *,
    name: str | None,
    reward: Callable[..., object] | str | None,
    broker: str | None,
) -> Settings:
    reference = reward_reference(reward) if callable(reward) else reward
    given = {
        "run.name": None if name is None else checked_name(name),
        "broker.bootstrap_servers": broker,
        "reward.function": reference,
    }
    assignments = tuple(f"{key}={value}" for key, value in given.items() if value is not None)
    if settings is None or isinstance(settings, (str, Path)):
        config = None if settings is None else Path(settings).expanduser()
        return load_settings(config, environment=os.environ, assignments=assignments)
    return load_settings(environment=os.environ, assignments=assignments, sections=settings)


def _assignments(path: tuple[str, ...], value: object) -> list[str]:
    """A value as `--set` takes it; the table of a secured connection key by key."""
    if path == ("broker", "security") and isinstance(value, Mapping):
        return [f"broker.security.{key}={json.dumps(item, default=str)}" for key, item in value.items()]
    return [f"{'.'.join(path)}={_as_text(value)}"]


def _as_text(value: object) -> str:
    return str(value) if isinstance(value, Path) else as_text(value)


def _home(home: str | Path | None) -> Path:
    return Path(home or os.environ.get("ROLLOG_HOME") or ".rollog").expanduser()


def _display(
    settings: Settings, on_step: Callable[[TrainedStep], object] | None
) -> Callable[[RunFacts], Display]:
    """What makes the listener once the run has a name and a broker."""

    def listener(facts: RunFacts) -> Display:
        follower = StepFollower(
            broker_at(facts.broker, settings.broker), RunTopics(settings.run.prefix, facts.run)
        )
        return StepListener(follower, on_step or _ignore)

    return listener


def _ignore(step: TrainedStep) -> None:
    """Nobody asked for steps."""


def _report(what: str, fraction: float) -> None:
    log.info("preparing", what=what, fraction=fraction)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
