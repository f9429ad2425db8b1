"""Replaying a recorded run, or asking what other settings would have made of its samples.

Consumes steps, weights and samples; produces nothing on the log. Lines for whoever waits go to `tell`, one by one,
because a step may take minutes.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rollog.kernel.errors import ConfigError, LedgerError, RunExists
from rollog.kernel.runs import read_runs
from rollog.run.names import checked_name
from rollog.run.recorded_run import open_run
from rollog.run.replay_report import curve_lines, replay_line, replay_report, verdict_line
from rollog.run.role_settings import trainer_settings
from rollog.settings.changes import refuse_other_keys
from rollog.settings.scopes import shared_out, training_keys
from rollog.settings.sources import assigned, split_assignment
from trainer.checkpoints import CheckpointStore
from trainer.recorded.counterfactual import Question, check_question, kind, train_counterfactual
from trainer.recorded.environment import compare_environment
from trainer.recorded.history import read_history
from trainer.recorded.redo import Recording, restore
from trainer.recorded.replay import recorded_span, replay_steps
from trainer.role import engine_of_ranks
from trainer.settings import amended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rollog.kernel.broker.ports import Broker
    from rollog.run.request import RecordedRunRequest
    from trainer.checkpoints import Checkpoint
    from trainer.engines.ports import TrainingEngine
    from trainer.recorded.replay import ReplayedStep
    from trainer.settings import TrainerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What is to be trained again: versions after `begin` up to `end` (None: the newest).

    `into` names a counterfactual; `num_ranks` is None for as many as the run had.
    """

    begin: int
    end: int | None
    into: str | None
    num_ranks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a replay found, as `--json` writes it, and the exit status that says it."""

    report: dict[str, Any]
    exit_status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a replay reads: a recorded run, its checkpoints, and its broker; and on how many ranks it trains."""

    recording: Recording
    checkpoints: list[Checkpoint]
    broker: Broker
    num_ranks: int


def replay_run(source: RecordedRunRequest, request: ReplayRequest, tell: Callable[[str], None]) -> Outcome:
    """Train a recorded run again and compare; with assignments of the run's own settings, ask what they had given.

    Raises ConfigError where a name is given without such assignments or the other way round, and as `open_run` does.
    """
    local, asked = shared_out(source.common.assignments)
    if bool(asked) != (request.into is not None):
        raise ConfigError(
            f"--into {request.into} needs --set of what is to be different"
            if request.into is not None
            else f"--set {asked[0]} asks what another setting would have given: name the answer with --into NAME"
        )
    here = replace(source, common=replace(source.common, assignments=local))
    with _opened(here, request.num_ranks) as opened:
        if request.into is None:
            return _replay(opened, request, tell)
        question = _question(opened, request.into, request, asked)
        return _ask(opened, question, source.common.home, tell)


def _replay(source: _Source, request: ReplayRequest, tell: Callable[[str], None]) -> Outcome:
    recording = source.recording
    begin, end = recorded_span(recording.history, request.begin, request.end)
    steps: list[ReplayedStep] = []
    with _engine(source, recording.settings) as engine:
        checkpoint = restore(engine, recording, source.checkpoints, at_most=begin, may_have_other_ranks=True)
        here = engine.describe()
        tell(_start_line(checkpoint))
        for step in replay_steps(engine, recording, range(_version_of(checkpoint) + 1, end + 1)):
            tell(replay_line(step))
            steps.append(step)
    environment = compare_environment(recording.genesis, here)
    tell(verdict_line(steps, environment))
    return Outcome(
        report=replay_report(recording, here, checkpoint, steps, environment),
        exit_status=1 if any(step.differing for step in steps) else 0,
    )


def _ask(source: _Source, question: Question, home: Path, tell: Callable[[str], None]) -> Outcome:
    recording = source.recording
    directory = home.resolve() / "counterfactuals" / question.name
    with _engine(source, amended(recording.settings, question.changes)) as engine:
        checkpoint = restore(engine, recording, source.checkpoints, at_most=question.begin)
        tell(_start_line(checkpoint))
        steps = list(
            train_counterfactual(
                engine, recording, question, stands_at=_version_of(checkpoint), directory=directory
            )
        )
    for line in curve_lines(steps):
        tell(line)
    tell(
        f"a {kind}, no reproduction: recorded samples of run {recording.topics.run} under "
        f"{', '.join(f'{key} = {value}' for key, value in question.changes.items())}; in {directory}"
    )
    report = {
        "kind": kind,
        "name": question.name,
        "recorded_run": recording.topics.run,
        "changes": dict(question.changes),
        "steps": [asdict(step) for step in steps],
    }
    return Outcome(report=report, exit_status=0)


def _question(source: _Source, name: str, request: ReplayRequest, asked: Sequence[str]) -> Question:
    """What is asked, checked before anything is begun."""
    recording = source.recording
    keys = [".".join(split_assignment(each)[0]) for each in asked]
    refuse_other_keys(keys, training_keys, "cannot be changed in a replay")
    if checked_name(name) in read_runs(source.broker, recording.topics.prefix):
        raise RunExists(f"--into {name}: a recorded run has that name; choose another")
    begin, end = recorded_span(recording.history, request.begin, request.end)
    question = Question(name=name, begin=begin, end=end, changes=assigned(asked))
    check_question(recording, question)
    return question


@contextmanager
def _engine(source: _Source, settings: TrainerSettings) -> Iterator[TrainingEngine]:
    """The engine on the ranks of a replay."""
    logs = source.recording.downloads
    with engine_of_ranks(settings, num_ranks=source.num_ranks, logs=logs) as (engine, _), closing(engine):
        yield engine


@contextmanager
def _opened(source: RecordedRunRequest, num_ranks: int | None) -> Iterator[_Source]:
    """The recorded run that a command names, with a place for the weights files it fetches."""
    with TemporaryDirectory(prefix="rollog-replay-") as downloads, open_run(source) as run:
        settings = trainer_settings(run.settings, run.manifest, source.common.home.resolve())
        recording = Recording(
            broker=run.broker,
            topics=run.topics,
            store=run.store,
            downloads=Path(downloads),
            settings=settings,
            history=read_history(run.broker, run.topics),
        )
        _check_manifest(recording)
        yield _Source(
            recording=recording,
            checkpoints=[] if run.is_archive else CheckpointStore(settings.checkpoints).complete(),
            broker=run.broker,
            num_ranks=num_ranks or recording.genesis.world_size,
        )


def _check_manifest(recording: Recording) -> None:
    """Raise LedgerError where the registered manifest is not the one that the ledger begins with."""
    if recording.genesis.manifest_json != recording.settings.manifest_json:
        raise LedgerError(
            f"the manifest of run {recording.topics.run} is not the one that its ledger begins with: one of them "
            "was changed, so the settings are not known; restore the manifest"
        )


def _version_of(checkpoint: Checkpoint | None) -> int:
    return 0 if checkpoint is None else checkpoint.version


def _start_line(checkpoint: Checkpoint | None) -> str:
    named = "" if checkpoint is None else f", checkpoint {checkpoint.name}"
    return f"from version {_version_of(checkpoint)}{named}"
