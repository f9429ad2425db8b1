"""`python -m benchmarks.weights`: what it takes to move the weights of a version."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.harness.options import (
    BenchOptions,
    bench_options,
    count_option,
    names,
    numbers,
    parts_option,
    progress,
    report,
    run,
)
from benchmarks.harness.random_model import shapes
from benchmarks.weights.parts import parts, parts_of_machines, ways_beside
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.harness.figures import Figure

    Details = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the options say of all parts. `home` is an empty directory that goes away afterwards."""

    shape: str
    rates: tuple[float, ...]
    optimizer_steps: tuple[int, ...]
    num_steps: int
    run_shape: str
    sizes: tuple[str, ...]
    num_versions: int
    ways: tuple[str, ...]
    step_seconds: float | None
    seed: int
    home: Path


@click.command("weights")
@parts_option(parts, ",".join(name for name in parts if name not in parts_of_machines))
@click.option(
    "--shape",
    type=click.Choice(list(shapes)),
    default="0.1b",
    show_default=True,
    help="The model that is trained for patches and adapters, with random weights.",
)
@click.option(
    "--rates",
    callback=numbers(float),
    default="1e-6,3e-6",
    show_default=True,
    help="Learning rates, constant over all steps.",
)
@click.option(
    "--optimizer-steps",
    callback=numbers(int),
    default="1,4",
    show_default=True,
    help="Optimizer steps from one version to the next.",
)
@count_option(
    "--steps", "num_steps", 20, "Versions after version 0, for each rate and number of optimizer steps."
)
@click.option(
    "--run-shape",
    type=click.Choice(list(shapes)),
    default="0.5b",
    show_default=True,
    help="Sizes of the tensors of whole runs, and of vLLM's model.",
)
@click.option(
    "--sizes",
    callback=names(lambda: tuple(shapes)),
    default="0.1b,0.5b,1.5b,7b",
    show_default=True,
    help="Sizes that versions are published with; one that memory or disk has no room for is left out. The part reload "
    "takes 0.1b and 0.5b of them.",
)
@count_option("--versions", "num_versions", 4, "Versions after version 0 of each size and form.")
@click.option(
    "--ways",
    callback=names(lambda: tuple(ways_beside)),
    default=",".join(ways_beside),
    show_default=True,
    help="Ways of publishing that the part beside compares.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Of a training step in the parts beside and reload, longer than a version takes to be served; left out, what "
    "they are published with.",
)
@bench_options
def weights(
    *,
    only: tuple[str, ...],
    options: BenchOptions,
    **asked: object,
) -> None:
    """Measure weights on their way; each part has a results file of its own (docs/benchmarks.md). One needs a GPU.

    Patches: a model in bfloat16 is trained by the trainer's engine with a policy-gradient loss on random responses, and
    every version is coded as a patch of the one before. Seconds are processor time of one thread, and stand beside
    those of the memory traffic that cannot be avoided. 0.1b takes 6 GB of memory.

    All others have random tensors with the sizes of a model. A training step is a wait in place of an accelerator's
    work. 0.5b takes 6 GB of memory and 11 GB of disk, with checkpoints 15 GB and 23 GB; 7b takes 19 GB and 34 GB.
    """
    figures: list[Figure] = []
    details: Details = {}
    with tempfile.TemporaryDirectory(prefix="rollog-weights-") as home:
        told = Asked(seed=options.seed, home=Path(home), **asked)  # type: ignore[arg-type]  # as click has them
        for name in only:
            found, more = _measures[name](told)
            figures += found
            details |= more
    report(figures, options, libraries=("torch", "transformers", "numpy", "zstandard"), details=details)


def _patches(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.patches import measure_patches  # torch, which help needs not

    return measure_patches(
        shape=shapes[asked.shape],
        rates=asked.rates,
        optimizer_steps=asked.optimizer_steps,
        num_steps=asked.num_steps,
        seed=asked.seed,
        on_progress=progress,
    )


def _adapters(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.adapters import measure_adapters

    found = measure_adapters(
        shape=shapes[asked.shape],
        num_versions=asked.num_versions,
        home=asked.home,
        seed=asked.seed,
        on_progress=progress,
    )
    return found, {}


def _beside(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.beside import (  # the same of numpy and the roles
        measure_beside,
        published_seconds,
    )

    found = measure_beside(
        shape=shapes[asked.run_shape],
        home=asked.home,
        seed=asked.seed,
        on_progress=progress,
        names=asked.ways,
        step_seconds=asked.step_seconds or published_seconds,
    )
    return found, {}


def _sizes(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.sizes import measure_sizes

    return measure_sizes(
        sizes={name: shapes[name] for name in asked.sizes},
        home=asked.home,
        num_versions=asked.num_versions,
        on_progress=progress,
    )


def _reload(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.reload import measure_reload, published_seconds

    seconds = {name: asked.step_seconds or each for name, each in published_seconds.items()}
    if not seconds.keys() & set(asked.sizes):
        raise DataError(
            f"--only reload measures {', '.join(seconds)}, and --sizes names none of them; name one there, or leave "
            "that part out"
        )
    found = measure_reload(
        sizes={name: shapes[name] for name in asked.sizes if name in seconds},
        home=asked.home,
        seed=asked.seed,
        on_progress=progress,
        step_seconds=seconds,
    )
    return found, {}


def _vllm_reload(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.vllm_reload import measure_vllm_reload

    name = asked.run_shape
    found = measure_vllm_reload(
        name=name, shape=shapes[name], home=asked.home, seed=asked.seed, on_progress=progress
    )
    return found, {}


def _throttled(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.throttled import measure_throttled

    found = measure_throttled(
        shape=shapes[asked.run_shape], home=asked.home, seed=asked.seed, on_progress=progress
    )
    return found, {}


def _rate(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.rate import measure_rate

    found = measure_rate(
        shape=shapes[asked.run_shape], home=asked.home, seed=asked.seed, on_progress=progress
    )
    return found, {}


def _gpu(asked: Asked) -> tuple[list[Figure], Details]:
    from benchmarks.weights.on_gpu import measure_on_gpu

    found = measure_on_gpu(
        shape=shapes[asked.run_shape],
        home=asked.home,
        num_versions=asked.num_versions,
        seed=asked.seed,
        on_progress=progress,
    )
    return found, {}


_measures: Mapping[str, Callable[[Asked], tuple[list[Figure], Details]]] = {
    "patches": _patches,
    "adapters": _adapters,
    "beside": _beside,
    "sizes": _sizes,
    "reload": _reload,
    "vllm_reload": _vllm_reload,
    "throttled": _throttled,
    "gpu": _gpu,
    "rate": _rate,
}

if __name__ == "__main__":
    run(weights)
