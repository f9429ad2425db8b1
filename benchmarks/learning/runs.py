"""Where the runs of the learning experiment are made: in this process with an injected lag, or by the real loop."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from benchmarks.harness.demo_run import demo_run, held_out_accuracy
from benchmarks.learning.cells import Measured
from benchmarks.learning.injected_lag import InjectedLagRun, RolloutSource
from rollog.settings.changes import changes_by_type
from rollog.settings.training import AlgorithmConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.harness.own_kafka import OwnKafka
    from benchmarks.learning.cells import Cell
    from rollog.settings.settings import Settings

evaluation_steps = 2
micro_batch_tokens = 768
"""Of a forward pass: small enough that little of it is padding. What is learnt does not depend on it."""


class InjectedRuns:
    """Runs in this process, on the task of `settings`, whose algorithm gives what does not follow from a cell's."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.changed(trainer={"micro_batch_tokens": micro_batch_tokens})
        self._source = RolloutSource(self._settings)

    def measure(self, cell: Cell) -> Measured:
        """One run. Raises EngineError when it diverges."""
        variant = cell.variant
        changes = changes_by_type(self._settings.algorithm, {"type": variant.algorithm})
        algorithm = AlgorithmConfig.model_validate({**self._settings.algorithm.model_dump(), **changes})
        return InjectedLagRun(
            self._source,
            self._settings,
            algorithm.with_budget(self._settings.sampling.max_tokens),
            lag=int(variant.lag),
            seed=cell.seed,
            is_corrected=variant.is_corrected,
        ).learn(evaluation_steps)


class RealRuns:
    """Runs of the demo with vLLM and DeepSpeed on a Kafka of its own.

    `shared` are the settings that all runs have, by dotted key.
    """

    def __init__(self, kafka: OwnKafka, shared: Mapping[str, object]) -> None:
        self._kafka, self._shared = kafka, shared

    def measure(self, cell: Cell) -> Measured:
        """One run. Raises ChildFailed."""
        variant, started = cell.variant, time.monotonic()
        view = demo_run(
            self._kafka,
            run_name(cell),
            {
                **self._shared,
                "algorithm.type": variant.algorithm,
                "freshness.alpha": variant.lag,
                "run.seed": cell.seed,
                "evaluation.every_steps": evaluation_steps,
            },
        )
        sampled = held_out_accuracy(view, "sampled")
        return Measured(
            accuracy=held_out_accuracy(view, "greedy"),
            sampled_accuracy=sampled[max(sampled)],
            effective_sample_size=None,
            seconds=time.monotonic() - started,
        )


def run_name(cell: Cell) -> str:
    """A name for the cell's run in the real loop, as run names must be."""
    variant = cell.variant
    return re.sub("[_.]", "-", f"learning-{variant.algorithm}-{variant.lag:g}-{cell.seed}")
