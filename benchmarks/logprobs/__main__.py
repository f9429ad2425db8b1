"""`python -m benchmarks.logprobs`: what log-probabilities in chunks of tokens cost a training step."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run

if TYPE_CHECKING:
    from benchmarks.harness.figures import Figure

    Measured = tuple[list[Figure], dict[str, object]]
    """Figures, and further entries of a results file."""


@click.command("logprobs")
@count_option(
    "--pairs", "num_pairs", 6, "Pairs of training steps of each model, after one that is not timed."
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="gpu: measure seconds and memory on a GPU.",
)
@bench_options
def logprobs(*, num_pairs: int, device: str, options: BenchOptions) -> None:
    """Measure CPU seconds of a training step with `trainer.logprob_chunk_tokens` above 0 against 0.

    The demo's model, and a random one of 0.1 billion parameters that takes 3 GiB of memory. With `--device gpu`: the
    output layer alone at 16,384 tokens and a vocabulary of 152,000, and steps of DeepSpeed with a random model of 0.5
    billion parameters. That takes 100 GiB of the GPU's memory, because logits of all tokens at once do.
    """
    with tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory:
        measured = _on_gpu if device == "gpu" else _on_cpu
        figures, details = measured(Path(directory), num_pairs, options.seed)
    report(figures, options, libraries=("torch", "transformers", "deepspeed"), details=details)


def _on_cpu(directory: Path, num_pairs: int, seed: int) -> Measured:
    from benchmarks.logprobs.measure import larger_workload, measure_chunks
    from benchmarks.training.workloads import demo_workload
    from rollog.demo.model import new_model, vocabulary
    from rollog.demo.word_models import save_model

    demo = directory / "demo"
    save_model(new_model(seed), demo)
    # The tokens of a step of the demo fit one chunk, as they do in a run; those of the larger model take two.
    workloads = [
        (demo_workload(demo, len(vocabulary)), 1024),
        (larger_workload(directory / "larger", seed), 128),
    ]
    figures = [
        figure
        for workload, chunk_tokens in workloads
        for figure in measure_chunks(
            workload, chunk_tokens=chunk_tokens, num_pairs=num_pairs, seed=seed, on_progress=progress
        )
    ]
    return figures, {}


def _on_gpu(directory: Path, num_pairs: int, seed: int) -> Measured:
    from benchmarks.logprobs.on_gpu import measure_layer, measure_step, name_of_gpu

    details: dict[str, object] = {"gpu": name_of_gpu()}
    layer = measure_layer(num_pairs=num_pairs, seed=seed)
    for figure in layer:
        progress(figure.line())
    return [*layer, *measure_step(directory / "0.5b", num_pairs=num_pairs, seed=seed)], details


if __name__ == "__main__":
    run(logprobs)
