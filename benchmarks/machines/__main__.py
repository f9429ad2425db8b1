"""`python -m benchmarks.machines`: a run over several hosts while the network between them fails."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.harness.options import BenchOptions, bench_options, names, progress, report, run
from benchmarks.machines.phases import phases


def _names() -> tuple[str, ...]:
    return tuple(phase.name for phase in phases("", "", ("", "")))


@click.command("machines")
@click.option(
    "--engine",
    type=click.Choice(["transformers", "vllm"]),
    default="transformers",
    show_default=True,
    help="Inference engine of the workers.",
)
@click.option("--only", callback=names(_names), help=f"Faults by name; left out, all: {', '.join(_names())}.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="New directory for logs and records, which stays."
)
@bench_options
def machines(*, engine: str, only: tuple[str, ...] | None, keep: Path | None, options: BenchOptions) -> None:
    """Run over four hosts, which are network namespaces, and report step times under each fault. Needs root."""
    from benchmarks.machines.measure import measure_machines

    figures, details = measure_machines(
        options.home,
        engine=engine,
        seed=options.seed,
        only=only,
        keep=keep,
        on_progress=progress,
    )
    report(figures, options, libraries=("torch", "s3fs", "moto"), details=details)


if __name__ == "__main__":
    run(machines)
