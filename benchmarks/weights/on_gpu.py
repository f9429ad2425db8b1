"""Publishing from a model that trains on a GPU: what a step takes, and how long publishing holds training up.

Engine, publisher and store are the trainer's; batches and weights are random.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from benchmarks.harness.figures import Figure, mean_figure, ratio_figure
from benchmarks.training.workloads import Workload, a_batch, lognormal, plan_of
from benchmarks.weights.updates import write_model
from rollog.kernel.errors import DataError
from rollog.kernel.weights import WeightsStore
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig
from trainer.engines.plain import PlainEngine
from trainer.publishing import WeightsPublisher
from trainer.step.ports import StepSettings, TrainingBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape

_learning_rate = 1e-6
_published_seconds = 5.0
largest_held = 0.08
_warm_versions = 2
"""The first copy touches memory, and so does the first comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version: its step, its seal, its write, and a copy of the same bytes from the GPU."""

    step_seconds: float
    seal_seconds: float
    write_seconds: float
    copy_seconds: float
    stored_share: float
    is_patch: bool


def measure_on_gpu(
    *, shape: ModelShape, home: Path, num_versions: int, seed: int, on_progress: Callable[[str], None]
) -> list[Figure]:
    """All figures, in full forms and as patches. Raises DataError without a GPU."""
    if not torch.cuda.is_available():
        raise DataError("--only gpu: PyTorch finds no GPU here; leave that part out")
    model = home / "model"
    write_model(model, shape, seed)
    figures = []
    for form in ("full", "patch"):
        versions = _publish(
            _workload(model, shape), home / form, patches=form == "patch", num=num_versions, seed=seed
        )
        found = figures_of(form, versions)
        for figure in found:
            on_progress(figure.line())
        figures += found
    return figures


def figures_of(form: str, versions: Sequence[Version]) -> list[Figure]:
    """The figures of one form. A version that became full where patches were asked for is left out."""
    counted = [each for each in versions if each.is_patch == (form == "patch")]
    stem = f"weights.gpu.{form}"
    mean_copy = fmean(each.copy_seconds for each in counted)
    return [
        mean_figure(
            f"{stem}.step", "s a step", [each.step_seconds for each in counted], higher_is_better=False
        ),
        mean_figure(
            f"{stem}.seal",
            "s on the trainer's thread for a version",
            [each.seal_seconds for each in counted],
            ideal=mean_copy,
            higher_is_better=False,
        ),
        mean_figure(
            f"{stem}.held",
            f"share of a step of {_published_seconds:g} s in which publishing holds training up",
            [each.seal_seconds / _published_seconds for each in counted],
            target=largest_held,
            ideal=mean_copy / _published_seconds,
            higher_is_better=False,
        ),
        ratio_figure(
            f"{stem}.seal_to_inside",
            "seconds held up, beside the next step / inside its own",
            [(each.seal_seconds, each.seal_seconds + each.write_seconds) for each in counted],
            higher_is_better=False,
        ),
        mean_figure(
            f"{stem}.write",
            "s beside the next step for a version",
            [each.write_seconds for each in counted],
            higher_is_better=False,
        ),
        mean_figure(
            f"{stem}.stored",
            "of the bytes are stored for a version",
            [each.stored_share for each in counted],
            higher_is_better=False,
        ),
    ]


def _publish(workload: Workload, directory: Path, *, patches: bool, num: int, seed: int) -> list[Version]:
    settings = StepSettings(
        algorithm=AlgorithmConfig(),
        optimizer=OptimizerConfig(learning_rate=_learning_rate, final_fraction=1.0),
        num_optimizer_steps=num + _warm_versions,
    )
    engine = PlainEngine(
        settings=settings,
        trainer=TrainerConfig(num_minibatches=workload.num_minibatches, packing=True),
        temperature=1.0,
        dtype="bfloat16",
    )
    publisher = WeightsPublisher(WeightsStore(str(directory)), lambda: "content", patches=patches)
    try:
        with closing(engine):
            engine.start(workload.model_path)
            publisher.publish(0, engine)
            found = [
                _one_version(engine, publisher, workload, number, seed)
                for number in range(1, num + _warm_versions + 1)
            ]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return found[_warm_versions:]


def _one_version(
    engine: PlainEngine, publisher: WeightsPublisher, workload: Workload, number: int, seed: int
) -> Version:
    batch = a_batch(workload, number=number, seed=seed)
    plan = plan_of(workload, batch.samples, number=number, seed=seed, packing=True)
    moments = [_now()]
    engine.train_step(TrainingBatch(samples=batch.samples, plan=plan))
    moments.append(_now())
    sealed = publisher.seal(number, engine)
    moments.append(_now())
    notice = publisher.write(sealed).notice
    moments.append(_now())
    copied = _seconds_of_a_copy(notice.num_bytes)
    step, seal, write = (after - before for before, after in pairwise(moments))
    return Version(
        step_seconds=step,
        seal_seconds=seal,
        write_seconds=write,
        copy_seconds=copied,
        stored_share=notice.stored_bytes / notice.num_bytes,
        is_patch=notice.base is not None,
    )


def _seconds_of_a_copy(num_bytes: int) -> float:
    """From the GPU to memory that was written before."""
    there = torch.zeros(num_bytes, dtype=torch.uint8, device="cuda")
    here = torch.zeros(num_bytes, dtype=torch.uint8)
    began = _now()
    here.copy_(there)
    return _now() - began


def _now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def _workload(model: Path, shape: ModelShape) -> Workload:
    """64 groups of 4, responses of 256 tokens in the median, for which a step of 0.5b takes seconds."""
    return Workload(
        name="gpu",
        model_path=str(model),
        vocabulary=shape.vocab_size,
        num_groups=64,
        group_size=4,
        num_minibatches=1,
        micro_batch_tokens=16384,
        prompt_tokens=(32, 128),
        response_tokens=lognormal(median=192.0, variation=1.0, longest=384),
    )
