"""`python -m benchmarks.logprobs`: what log-probabilities in chunks of tokens cost a training step."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks.harness.options import BenchOptions, bench_options, count_option, progress, report, run


@click.command("logprobs")
@count_option(
    "--pairs", "num_pairs", 6, "Pairs of training steps of each model, after one that is not timed."
)
@bench_options
def logprobs(*, num_pairs: int, options: BenchOptions) -> None:
    """Measure CPU seconds of a training step with `trainer.logprob_chunk_tokens` above 0 against 0.

    The demo's model, and a random one of 0.1 billion parameters that takes 3 GiB of memory.
    """
    from benchmarks.logprobs.measure import larger_workload, measure_chunks
    from benchmarks.training.workloads import demo_workload
    from rollog.demo.model import new_model, vocabulary
    from rollog.demo.word_models import save_model

    with tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory:
        demo = Path(directory) / "demo"
        save_model(new_model(options.seed), demo)
        # The tokens of a step of the demo fit one chunk, as they do in a run; those of the larger model take two.
        workloads = [
            (demo_workload(demo, len(vocabulary)), 1024),
            (larger_workload(Path(directory) / "larger", options.seed), 128),
        ]
        figures = [
            figure
            for workload, chunk_tokens in workloads
            for figure in measure_chunks(
                workload,
                chunk_tokens=chunk_tokens,
                num_pairs=num_pairs,
                seed=options.seed,
                on_progress=progress,
            )
        ]
    report(figures, options, libraries=("torch", "transformers"))


if __name__ == "__main__":
    run(logprobs)
