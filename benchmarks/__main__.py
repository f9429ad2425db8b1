"""`python -m benchmarks`: list the experiments with how long each takes, and how to run one."""

from __future__ import annotations

import click

from benchmarks.catalogue import listing


@click.command()
def benchmarks() -> None:
    """List the experiments, with what was measured last and how long it took. Runs none of them."""
    click.echo(listing())


if __name__ == "__main__":
    benchmarks()
