"""The experiments by name: the question of each, and how long it takes. Pure but for reading results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One question, and about how many minutes the command without options takes on two cores.

    `minutes_by_part` are those of `--only PART`, where an experiment has parts.
    """

    question: str
    minutes: float
    minutes_by_part: Mapping[str, float] = field(default_factory=dict)


experiments: Mapping[str, Experiment] = {
    "scheduling": Experiment(
        question="what queue scheduling, redundancy and replication bring",
        minutes=17,
        # Engine seconds of one seed of each over speed and processes; eviction as measured.
        minutes_by_part={
            "queue": 4,
            "redundancy": 4,
            "steady_redundancy": 6,
            "replication": 12,
            "asynchrony": 65,
            "protection": 5,
            "slow_worker": 16,
            "scoring": 1,
            "eviction": 0.5,
        },
    ),
    "reloads": Experiment(
        question="what a new version costs while workers fetch it: slots, step time, freshness", minutes=15
    ),
    "scaling": Experiment(question="what more workers bring and cost the dispatcher", minutes=3),
    "growth": Experiment(question="what the age of a run costs who starts on it, or reads it", minutes=20),
    "learning": Experiment(question="what every algorithm learns from old samples", minutes=80),
    "accuracy": Experiment(question="time to an accuracy, synchronous and asynchronous", minutes=15),
    "chaos": Experiment(question="whether anything is lost or done twice when parts are killed", minutes=20),
    "machines": Experiment(
        question="what a failing network costs a run over several hosts, and whether it loses anything",
        minutes=18,
    ),
    "recovery": Experiment(question="what a killed trainer needs to come back", minutes=7),
    "training": Experiment(question="how fast the trainer's engine is against a bare loop", minutes=1),
    "reproducible": Experiment(question="what a training step costs with pinned instructions", minutes=3),
    "logprobs": Experiment(
        question="what log-probabilities in chunks of tokens cost a training step", minutes=2
    ),
    "accelerator": Experiment(question="where the time of the whole loop goes on one GPU", minutes=8),
    "verification": Experiment(
        question="how long `rollog verify` takes, and whether it raises false alarms", minutes=7
    ),
    "data_plane": Experiment(
        question="what samples cost on their way through the log, and by other ways", minutes=5
    ),
    "dispatcher": Experiment(
        question="what a task costs the dispatcher, and how many workers one carries", minutes=13
    ),
    "weights": Experiment(
        question="how small a version's weights can be on their way, what that takes, and how it holds training up",
        minutes=110,
        minutes_by_part={
            "patches": 20,
            "beside": 18,
            "sizes": 15,
            "reload": 17,
            "vllm_reload": 2,
            "throttled": 20,
            "gpu": 3,
            "rate": 16,
        },
    ),
    "picture": Experiment(question="a run whose trainer, worker and broker are killed, drawn", minutes=2),
    "demo": Experiment(question="what the demo learns, and how long a step takes", minutes=5),
    "agentic": Experiment(
        question="what asynchronous and redundant environments bring",
        minutes=50,
        # Engine seconds of the draws over speed and processes.
        minutes_by_part={"asynchrony": 50, "spreads": 20, "redundancy": 100, "training": 180},
    ),
    "guessing": Experiment(question="what a small model learns of a game of several turns", minutes=12),
    "sums": Experiment(
        question="what a small model learns of sums of reasoning-gym, easy ones first", minutes=10
    ),
}


def listing() -> str:
    """The experiments, what was measured of each with its duration, and how to run one."""
    lines = []
    for name, experiment in experiments.items():
        lines.append(f"{name:<12} {experiment.question} (about {experiment.minutes:g} min)")
        lines += [
            f"{'':<12}   --only {part} (about {minutes:g} min)"
            for part, minutes in experiment.minutes_by_part.items()
        ]
        lines += [f"{'':<12}   {line}" for line in measured(name)]
    lines += [
        "",
        "Run one from the root of the repository, for example:",
        "  .venv/bin/python -m benchmarks.training --seed 0 --json figures.json",
        "--help says what it takes; without options it measures about as much as is published.",
    ]
    return "\n".join(lines)


def measured(name: str) -> list[str]:
    """The commands of an experiment's results that say how long they took, with that."""
    directory = Path(__file__).parent / name / "results"
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    return [f"{each['command']}: {each['seconds'] / 60:.1f} min" for each in results if "seconds" in each]
