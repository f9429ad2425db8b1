"""`rollog replay`: train a recorded run once more and compare, or ask what other settings would have given."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from rollog.cli.json_file import json_option, write_json
from rollog.cli.run_source import SourceOptions, run_source_options
from rollog.kernel.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.broker.ports import Broker
    from trainer.checkpoints import Checkpoint
    from trainer.engines.ports import EngineDescription, TrainingEngine
    from trainer.recorded.counterfactual import CounterfactualStep, Question
    from trainer.recorded.redo import Recording
    from trainer.recorded.replay import ReplayedStep
    from trainer.settings import TrainerSettings

_curves = ("clip_fraction", "divergence", "effective_sample_size")
_no_figure = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a replay reads: a recorded run, its checkpoints, and its broker; and on how many ranks it trains."""

    recording: Recording
    checkpoints: list[Checkpoint]
    broker: Broker
    num_ranks: int


@click.command()
@click.option(
    "--from",
    "begin",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Version to begin with; the newest checkpoint up to it is loaded, or version 0.",
)
@click.option("--to", "end", type=click.IntRange(min=1), help="Last version to make; the newest without it.")
@click.option("--into", metavar="NAME", help="With --set of training settings: name of the counterfactual.")
@click.option(
    "--ranks",
    "num_ranks",
    type=click.IntRange(min=1),
    help="Ranks to train on; as many as the run had without it. On others only distances are told.",
)
@json_option
@run_source_options
def replay(
    source: SourceOptions,
    *,
    begin: int,
    end: int | None,
    into: str | None,
    num_ranks: int | None,
    json_path: Path | None,
) -> int:
    """Train a recorded run again from its topics and compare every step with the ledger.

    Exit status 0 when every step has the recorded sha256, loss and gradient norms, 1 when one differs. On other
    hardware or versions the distances are reported. Needs no rollout worker, and changes nothing of the run. On another
    number of ranks no step is called equal, and the replay begins with version 0.

    With --set of [algorithm], [optimizer] or [trainer] settings and --into NAME it asks what those settings would
    have made of the recorded samples. The answer, in HOME/counterfactuals/NAME, is marked as a counterfactual.

    Consumes steps, weights and samples; produces nothing on the log.
    """
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.run.role_settings import shared_out  # noqa: PLC0415  # help needs no Kafka

    configure_logging()
    local, asked = shared_out(source.common.assignments)
    if bool(asked) != (into is not None):
        raise ConfigError(
            f"--into {into} needs --set of what is to be different"
            if into is not None
            else f"--set {asked[0]} asks what another setting would have given: name the answer with --into NAME"
        )
    with _opened(replace(source, common=replace(source.common, assignments=local)), num_ranks) as opened:
        if into is None:
            return _replay(opened, begin, end, json_path)
        question = _question(opened, into, begin, end, asked)
        return _ask(opened, question, source.common.home, json_path)


def replay_line(step: ReplayedStep) -> str:
    """One replayed step for a terminal."""
    if not step.differing:
        return (
            f"version {step.version}: equal, sha256 {step.weights_sha256[:16]}, "
            f"loss {_mean(step.losses):.6g}, gradient norm {_mean(step.gradient_norms):.6g}"
        )
    distance = step.distance
    weights = (
        f"; weights apart by at most {distance.max_absolute:.3g}, relative {distance.relative:.3g}"
        if distance is not None
        else ""
    )
    return (
        f"version {step.version}: DIFFERS in {', '.join(step.differing)}: sha256 {step.weights_sha256[:16]} here, "
        f"{step.recorded_sha256[:16]} recorded{weights}; loss apart by {_figure(step.loss_difference)}, gradient norm "
        f"by {_figure(step.gradient_norm_difference)}"
    )


def verdict_line(steps: list[ReplayedStep], differences: dict[str, tuple[str, str]]) -> str:
    """What a replay found; equal only where every step is."""
    wrong = [step for step in steps if step.differing]
    if not wrong:
        return f"EQUAL: {len(steps)} step(s) replayed, all as recorded"
    recorded, here = steps[0].ranks
    if recorded != here:
        farthest = max((step.distance.relative for step in steps if step.distance is not None), default=0.0)
        return (
            f"NOT COMPARED FOR EQUALITY: recorded on {recorded} rank(s), replayed on {here}: gradients are summed in "
            f"another order, so only distances say something; weights apart by at most {farthest:.3g}, relative, in "
            f"{len(steps)} step(s)"
        )
    elsewhere = "; ".join(f"{name} was {then}, is {now}" for name, (then, now) in differences.items())
    cause = (
        f"this is not where the run began ({elsewhere}), so steps may differ"
        if elsewhere
        else "machine type and versions are those of the run, so the ledger or the samples may have been changed"
    )
    return f"DIFFERENT: {len(wrong)} of {len(steps)} step(s), the first is that of version {wrong[0].version}; {cause}"


def curve_lines(steps: list[CounterfactualStep]) -> Iterator[str]:
    """Recorded and counterfactual curves side by side."""
    names = ("loss", "gradient norm", *_curves)
    yield f"{'version':>7}  " + "  ".join(f"{name:>24}" for name in names)
    for step in steps:
        pairs = [
            (step.recorded.loss, step.counterfactual.loss),
            (step.recorded.gradient_norm, step.counterfactual.gradient_norm),
            *(
                (step.recorded.statistics.get(name), step.counterfactual.statistics.get(name))
                for name in _curves
            ),
        ]
        cells = (f"{_figure(there)} -> {_figure(here)}" for there, here in pairs)
        yield f"{step.version:>7}  " + "  ".join(f"{cell:>24}" for cell in cells)


def _replay(source: Source, begin: int, end: int | None, json_path: Path | None) -> int:
    from trainer.recorded.redo import environment_differences, restore  # noqa: PLC0415
    from trainer.recorded.replay import recorded_span, replay_steps  # noqa: PLC0415

    recording = source.recording
    begin, end = recorded_span(recording.history, begin, end)
    steps: list[ReplayedStep] = []
    with _engine(source, recording.settings) as engine:
        checkpoint = restore(engine, recording, source.checkpoints, at_most=begin, may_have_other_ranks=True)
        here = engine.describe()
        stands_at = _announce(checkpoint)
        for step in replay_steps(engine, recording, range(stands_at + 1, end + 1)):
            click.echo(replay_line(step))
            steps.append(step)
    differences = environment_differences(recording.genesis, here)
    click.echo(verdict_line(steps, differences))
    if json_path is not None:
        write_json(json_path, _report(recording, here, checkpoint, steps, differences))
    return 1 if any(step.differing for step in steps) else 0


def _ask(source: Source, question: Question, home: Path, json_path: Path | None) -> int:
    from trainer.recorded.counterfactual import kind, train_counterfactual  # noqa: PLC0415
    from trainer.recorded.redo import restore  # noqa: PLC0415
    from trainer.revisions import amended  # noqa: PLC0415

    recording = source.recording
    directory = home.resolve() / "counterfactuals" / question.name
    with _engine(source, amended(recording.settings, question.changes)) as engine:
        checkpoint = restore(engine, recording, source.checkpoints, at_most=question.begin)
        stands_at = _announce(checkpoint)
        steps = list(
            train_counterfactual(engine, recording, question, stands_at=stands_at, directory=directory)
        )
    for line in curve_lines(steps):
        click.echo(line)
    click.echo(
        f"a {kind}, no reproduction: recorded samples of run {recording.topics.run} under "
        f"{', '.join(f'{key} = {value}' for key, value in question.changes.items())}; in {directory}"
    )
    if json_path is not None:
        write_json(
            json_path,
            {
                "kind": kind,
                "name": question.name,
                "recorded_run": recording.topics.run,
                "changes": dict(question.changes),
                "steps": [asdict(step) for step in steps],
            },
        )
    return 0


def _question(source: Source, name: str, begin: int, end: int | None, asked: tuple[str, ...]) -> Question:
    """What is asked, checked before anything is begun."""
    from rollog.kernel.errors import RunExists  # noqa: PLC0415
    from rollog.kernel.runs import read_runs  # noqa: PLC0415
    from rollog.run.names import checked_name  # noqa: PLC0415
    from rollog.settings.sources import assigned, split_assignment  # noqa: PLC0415
    from trainer.recorded.counterfactual import Question, check_question  # noqa: PLC0415
    from trainer.recorded.replay import recorded_span  # noqa: PLC0415
    from trainer.revisions import refuse_other_keys, training_keys  # noqa: PLC0415

    recording = source.recording
    keys = [".".join(split_assignment(each)[0]) for each in asked]
    refuse_other_keys(keys, training_keys, "cannot be changed in a replay")
    if checked_name(name) in read_runs(source.broker, recording.topics.prefix):
        raise RunExists(f"--into {name}: a recorded run has that name; choose another")
    begin, end = recorded_span(recording.history, begin, end)
    question = Question(name=name, begin=begin, end=end, changes=assigned(asked))
    check_question(recording, question)
    return question


@contextmanager
def _engine(source: Source, settings: TrainerSettings) -> Iterator[TrainingEngine]:
    """The engine on the ranks of a replay."""
    from trainer.role import engine_of_ranks  # noqa: PLC0415

    logs = source.recording.downloads
    with engine_of_ranks(settings, num_ranks=source.num_ranks, logs=logs) as (engine, _):
        yield engine


@contextmanager
def _opened(source: SourceOptions, num_ranks: int | None) -> Iterator[Source]:
    """The recorded run that a command names, with a place for the weights files it fetches."""
    from rollog.cli.run_source import open_run  # noqa: PLC0415
    from rollog.run.role_settings import trainer_settings  # noqa: PLC0415
    from trainer.checkpoints import CheckpointStore  # noqa: PLC0415
    from trainer.recorded.history import read_history  # noqa: PLC0415
    from trainer.recorded.redo import Recording  # noqa: PLC0415

    with TemporaryDirectory(prefix="rollog-replay-") as downloads:
        run = open_run(source)
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
        yield Source(
            recording=recording,
            checkpoints=[] if run.is_archive else CheckpointStore(settings.checkpoints).complete(),
            broker=run.broker,
            num_ranks=num_ranks or recording.genesis.world_size,
        )


def _check_manifest(recording: Recording) -> None:
    """Raise LedgerError where the registered manifest is not the one that the ledger begins with."""
    from rollog.kernel.errors import LedgerError  # noqa: PLC0415

    if recording.genesis.manifest_json != recording.settings.manifest_json:
        raise LedgerError(
            f"the manifest of run {recording.topics.run} is not the one that its ledger begins with: one of them "
            "was changed, so the settings are not known; restore the manifest"
        )


def _announce(checkpoint: Checkpoint | None) -> int:
    """Say where a replay begins; returns that version."""
    version = 0 if checkpoint is None else checkpoint.version
    click.echo(f"from version {version}" + ("" if checkpoint is None else f", checkpoint {checkpoint.name}"))
    return version


def _report(
    recording: Recording,
    here: EngineDescription,
    checkpoint: Checkpoint | None,
    steps: list[ReplayedStep],
    differences: dict[str, tuple[str, str]],
) -> dict[str, Any]:
    wrong = [step.version for step in steps if step.differing]
    return {
        "kind": "replay",
        "run": recording.topics.run,
        "ledger_head": recording.history.state.head.hex(),
        "checkpoint": None if checkpoint is None else checkpoint.name,
        "equal": not wrong,
        "first_differing_version": wrong[0] if wrong else None,
        "device": here.device,
        "environment_differences": {
            name: {"recorded": then, "here": now} for name, (then, now) in differences.items()
        },
        "steps": [step.figures() for step in steps],
    }


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values) if values else 0.0


def _figure(value: float | None) -> str:
    return _no_figure if value is None else f"{value:.4g}"
