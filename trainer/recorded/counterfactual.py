"""What if: recorded samples trained under other settings.

Consumes a recorded run; produces, in a directory of its own, a manifest, the last weights and a summary, all of which
say that this is a counterfactual. The recorded run is read and left as it is. On a crash the directory stays without
summary.

The samples were drawn by the recorded policies, in the recorded order. What other settings would have sampled
instead nobody knows: the further the trained policy moves from the recorded one, the less its curves say, and the
off-policy statistics beside them tell how far that is.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rollog import __version__
from rollog.kernel.errors import ConfigError, RunExists
from rollog.kernel.weights import WeightsStore
from rollog.settings.changes import refuse_other_keys
from rollog.settings.scopes import engine_keys, training_keys
from trainer.publishing import publish_export
from trainer.recorded.redo import redo_steps
from trainer.settings import changed_by_type
from trainer.step.off_policy import finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from schemas import WeightVersion
    from trainer.engines.ports import TrainingEngine
    from trainer.recorded.redo import Recording

kind = "counterfactual"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurves:
    """One step in figures: means over its optimizer steps, and the step's off-policy statistics."""

    loss: float
    gradient_norm: float
    learning_rate: float
    statistics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterfactualStep:
    """One recorded step and what the same samples gave under other settings."""

    version: int
    recorded: StepCurves
    counterfactual: StepCurves
    recorded_sha256: str
    weights_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: `changes`, by dotted key, from version `begin` to version `end`; the answer is called `name`."""

    name: str
    begin: int
    end: int
    changes: Mapping[str, object]


def check_question(recording: Recording, question: Question) -> None:
    """Raise ConfigError for settings that cannot be asked about."""
    refuse_other_keys(question.changes, training_keys, "cannot be changed in a replay")
    asked = changed_by_type(recording.settings, question.changes)
    for_engine = sorted(question.changes.keys() & engine_keys)
    if asked.algorithm.needs_values != recording.settings.algorithm.needs_values:
        for_engine.append("algorithm.advantage")
    if question.begin > 0 and for_engine:
        raise ConfigError(
            f"{', '.join(for_engine)} makes another engine, which cannot go on from the recorded optimizer state of "
            f"version {question.begin}; begin with version 0"
        )


def train_counterfactual(
    engine: TrainingEngine, recording: Recording, question: Question, *, stands_at: int, directory: Path
) -> Iterator[CounterfactualStep]:
    """Train the recorded steps under the question's settings on an engine that stands at version `stands_at`.

    Steps up to the question's begin are redone as recorded. `directory` gets manifest.json before the first step and
    weights and summary.json after the last. Raises RunExists where `directory` is there already.
    """
    _write_manifest(directory, recording, question)
    for _ in redo_steps(engine, recording, range(stands_at + 1, question.begin + 1)):
        pass
    steps: list[CounterfactualStep] = []
    for step in redo_steps(engine, recording, range(question.begin + 1, question.end + 1), question.changes):
        recorded, result = step.recorded, step.result
        steps.append(
            CounterfactualStep(
                version=step.version,
                recorded=_curves(
                    recorded.losses, recorded.gradient_norms, recorded.learning_rates, recorded.statistics
                ),
                counterfactual=_curves(
                    result.losses, result.gradient_norms, result.learning_rates, result.statistics
                ),
                recorded_sha256=recorded.weights_sha256,
                weights_sha256=step.weights_sha256,
            )
        )
        yield steps[-1]
    store = WeightsStore((directory / "weights").resolve().as_uri())
    notice = publish_export(
        store,
        question.end,
        engine.export_weights,
        recording.history.weights_identity,
        engine.describe().adapter,
    )
    _write(directory / "summary.json", _summary(recording, question, steps, notice))


def _curves(
    losses: Sequence[float], norms: Sequence[float], rates: Sequence[float], statistics: Mapping[str, float]
) -> StepCurves:
    return StepCurves(
        loss=fmean(losses),
        gradient_norm=fmean(norms),
        learning_rate=fmean(rates),
        statistics=finite(dict(statistics)),
    )


def _about(recording: Recording, question: Question) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": question.name,
        "recorded_run": recording.topics.run,
        "recorded_ledger_head": recording.history.state.head.hex(),
        "begin_version": question.begin,
        "end_version": question.end,
        "changes": dict(question.changes),
    }


def _write_manifest(directory: Path, recording: Recording, question: Question) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError as error:
        raise RunExists(f"{directory} exists already; choose another name with --into") from error
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error}; choose another --home") from error
    _write(
        directory / "manifest.json",
        {
            **_about(recording, question),
            "recorded_settings": json.loads(recording.genesis.manifest_json),
            "recorded_changes": recording.history.state.amendments,
            "rollog_version": __version__,
            "created_unix_seconds": time.time(),
        },
    )


def _summary(
    recording: Recording, question: Question, steps: Sequence[CounterfactualStep], notice: WeightVersion
) -> dict[str, Any]:
    return {
        **_about(recording, question),
        "weights": notice.name,
        "weights_sha256": notice.sha256,
        "steps": [asdict(step) for step in steps],
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    partial.replace(path)
