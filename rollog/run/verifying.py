"""Verifying a recorded run: its samples, its weights, and a model that computes the log-probabilities again.

Consumes steps, weights and samples; produces nothing on the log and changes nothing of the run.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from consumers.ledger import folded, read_ledger
from consumers.named_weights import read_named_weights
from consumers.verification.reading import ChosenSamples
from consumers.verification.rule import Tolerances, float32_tolerance
from consumers.verification.selection import chosen_records
from consumers.verification.verifier import Verifier
from rollog.kernel.errors import ConfigError
from rollog.kernel.payloads import PayloadStore
from rollog.run.ledger_weights import LedgerWeights
from rollog.run.recorded_run import open_run
from rollog.run.role_settings import trainer_settings
from trainer.recorded.prefill import PolicyPrefill, bfloat16_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from consumers.verification.pieces import Piece
    from consumers.verification.ports import Scorer
    from consumers.verification.report import VerificationReport
    from consumers.verification.selection import Selection
    from rollog.run.recorded_run import RecordedRun
    from rollog.run.request import RecordedRunRequest
    from trainer.settings import TrainerSettings

ScorerName = Literal["transformers", "vllm"]

_calibration_tokens = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """Which samples, what computes, and the nats from which a token is beyond tolerance (None: by the run's dtype).

    With `require_all` what could not be checked fails the verification, too.
    """

    selection: Selection
    engine: ScorerName = "transformers"
    tolerance: float | None = None
    require_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOutcome:
    """What was found. `seconds` are from the first record to the last comparison, without start of the model."""

    run: str
    engine: ScorerName
    num_samples: int
    num_chosen: int
    require_all: bool
    seconds: float
    cpu_seconds: float
    report: VerificationReport

    @property
    def exit_status(self) -> int:
        """0 where something was compared, nothing is off, and nothing was left out that is required."""
        is_enough = self.report.is_complete or not self.require_all
        return 0 if self.report.is_clean and is_enough else 1

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield (
            f"run {self.run}: {self.num_samples} of {self.num_chosen} chosen sample(s) read, computed again with "
            f"{self.engine} in {self.seconds:.1f} s"
        )
        yield from self.report.lines()

    def as_json(self) -> dict[str, Any]:
        """For programs, with everything."""
        return {
            "run": self.run,
            "engine": self.engine,
            "num_samples": self.num_samples,
            "num_chosen": self.num_chosen,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            **self.report.as_json(),
        }


def verify_run(source: RecordedRunRequest, request: VerifyRequest) -> VerifyOutcome:
    """Compute the chosen samples of a run again and compare.

    Raises ConfigError for a step that is not there or an engine that cannot do it, LedgerError for a broken chain,
    DataError where the model cannot be loaded, and as `open_run` does.
    """
    with TemporaryDirectory(prefix="rollog-verify-") as downloads, open_run(source) as run:
        settings = trainer_settings(run.settings, run.manifest, source.common.home.resolve())
        with _scorer(request.engine, settings, run) as scorer:
            return verify_recorded(run, settings, scorer, request, Path(downloads))


def verify_recorded(
    run: RecordedRun, settings: TrainerSettings, scorer: Scorer, request: VerifyRequest, downloads: Path
) -> VerifyOutcome:
    """The same of an opened run with a scorer that was made; files of a store elsewhere go to `downloads` and leave."""
    began, cpu_began = time.monotonic(), time.process_time()
    entries = read_ledger(run.broker, run.topics)
    ledger = folded(entries)
    chosen = chosen_records(entries, request.selection)
    named = read_named_weights(run.broker, run.topics, ledger.weights)
    weights = LedgerWeights(named, run.store, downloads)
    verifier = Verifier(scorer, weights, _calibration(settings, request.tolerance))
    with run.broker.consumer(client_id="verify") as consumer:
        samples = ChosenSamples(consumer, run.topics.samples, PayloadStore(run.store, run.topics))
        report = verifier.run(samples.parts(chosen))
    return VerifyOutcome(
        run=run.topics.run,
        engine=request.engine,
        num_samples=samples.num_samples,
        num_chosen=sum(len(records.verdicts) for records in chosen),
        require_all=request.require_all,
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - cpu_began,
        report=replace(report, altered=samples.altered, unread=samples.unread),
    )


def _calibration(
    settings: TrainerSettings, tolerance: float | None
) -> Callable[[Path, Sequence[Piece]], Tolerances]:
    """How far noise goes: as asked, as float32 has it, or as bfloat16 is measured with the run's own weights."""

    def calibrate(weights_path: Path, pieces: Sequence[Piece]) -> Tolerances:
        if tolerance is not None:
            return Tolerances.fixed(tolerance)
        if settings.model.dtype == "float32":
            return Tolerances.fixed(float32_tolerance)
        noise = bfloat16_noise(
            settings.model_path,
            weights_path,
            pieces,
            temperature=settings.sampling_temperature,
            max_tokens=_calibration_tokens,
        )
        return Tolerances.of_noise(noise)

    return calibrate


def _scorer(
    engine: ScorerName, settings: TrainerSettings, run: RecordedRun
) -> AbstractContextManager[Scorer]:
    """What computes again, for as long as the block lasts."""
    if engine == "transformers":
        return _policy(settings)
    temperature = settings.sampling_temperature
    if temperature != 1.0:
        raise ConfigError(
            f"--engine vllm: this run samples at temperature {temperature:g}, and vLLM gives log-probabilities of a "
            "prompt at temperature 1 only; use --engine transformers"
        )
    from producers.engines.vllm_prefill import vllm_prefill  # noqa: PLC0415  # reads the environment

    return vllm_prefill(
        run.settings.model, run.settings.rollout, adapter_rank=run.settings.trainer.published_rank
    )


@contextmanager
def _policy(settings: TrainerSettings) -> Iterator[Scorer]:
    yield PolicyPrefill(
        settings.model_path,
        dtype=settings.model.dtype,
        temperature=settings.sampling_temperature,
        micro_batch_tokens=settings.trainer.micro_batch_tokens,
        num_threads=settings.trainer.num_threads or 1,
    )
