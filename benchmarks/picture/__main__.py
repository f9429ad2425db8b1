"""`python -m benchmarks.picture`: a run whose trainer, worker and broker are killed, and its live view, as pictures."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.harness.options import BenchOptions, bench_options, progress, report, run

_num_steps = 40


@click.command("picture")
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/images"),
    show_default=True,
    help="Where the pictures are written.",
)
@bench_options
def picture(*, into: Path, options: BenchOptions) -> None:
    """Draw a run of the demo in which trainer, worker and broker are killed, each once.

    Writes killed.svg, the reward of each step over time, and live-start.svg, live-middle.svg, live-missing.svg and
    live-end.svg, what `rollog watch` shows at the start, in the middle, with a role missing and at the end.
    """
    from benchmarks.chaos.kills import Role
    from benchmarks.harness.figures import Figure
    from benchmarks.picture.drawing import curve, live_view
    from benchmarks.picture.killed_demo import killed_demo

    name = "killed"
    kills = {8: Role.TRAINER, 16: Role.WORKER, 24: Role.BROKER}
    demo = killed_demo(options.home, name, kills, options.seed, progress)
    into.mkdir(parents=True, exist_ok=True)
    (into / "killed.svg").write_text(curve(demo), encoding="utf-8")
    for kind, view, seconds in demo.views:
        (into / f"live-{kind}.svg").write_text(live_view(view, name, _num_steps, seconds), encoding="utf-8")
    figures = [
        Figure(name="picture.kills", value=len(demo.kills), unit="kills", target=3, higher_is_better=True),
        Figure(
            name="picture.steps",
            value=len(demo.rewards),
            unit="steps",
            target=_num_steps,
            higher_is_better=True,
        ),
        Figure(name="picture.reward_of_last_step", value=demo.rewards[-1][1], unit="reward"),
    ]
    report(figures, options)


if __name__ == "__main__":
    run(picture)
