"""A trainer that was killed and comes back, against loading the checkpoint and re-training.

A run of the demo is killed as a whole some steps after a checkpoint. Then, in turns and with nothing beside them on the
same Kafka: `rollog train`, from the start of its process until it is ready for the next step, and `rollog replay` from
the checkpoint to the newest version, from the start of its process to its end. Both load the same checkpoint and train
the same recorded samples again; what recovery takes above that is taking over, and reading the ledger.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from benchmarks.harness.demo_run import as_published, prefix, set_options
from benchmarks.harness.figures import Figure, ratio_figure
from consumers.ledger import read_ledger
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ChildFailed
from rollog.kernel.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.harness.own_kafka import OwnKafka

run_name = "recovery"
checkpoint_every_steps = 20
kill_at_step = 38
largest_ratio = 1.3
_max_wait_seconds = 600.0
_tick_seconds = 0.01
_ready = "trainer ready"


def measure_recovery(
    *,
    num_rounds: int,
    seed: int,
    kafka: OwnKafka,
    on_progress: Callable[[str], None],
) -> list[Figure]:
    """Seconds of both, in turns, and their ratio. Raises ChildFailed."""
    home = kafka.home
    place = ("--home", str(home), "--broker", kafka.address)
    _make_run(place, home, seed)
    version = read_ledger(kafka.broker, RunTopics(prefix, run_name))[-1].record.version
    begin = version - version % checkpoint_every_steps
    again = ("replay", run_name, *place, "--from", str(begin), "--to", str(version))
    pairs = []
    for number in range(num_rounds):
        recovered = _seconds_until(_ready, ("train", "--run", run_name, *place), home / f"train-{number}.log")
        replayed = _seconds_until(None, again, home / f"replay-{number}.log")
        pairs.append((recovered, replayed))
        on_progress(f"recovered in {recovered:.1f} s, trained again in {replayed:.1f} s")
    return _figures(pairs, num_steps=version - begin)


def _figures(pairs: Sequence[tuple[float, float]], *, num_steps: int) -> list[Figure]:
    return [
        ratio_figure(
            "recovery.ratio",
            "recovery / checkpoint and missing steps trained again",
            pairs,
            target=largest_ratio,
            higher_is_better=False,
        ),
        *(
            Figure(
                name=f"recovery.{name}",
                value=sum(pair[which] for pair in pairs) / len(pairs),
                unit="s, with the start of the process",
                higher_is_better=False,
            )
            for which, name in enumerate(("trainer", "replay"))
        ),
        Figure(name="recovery.steps", value=num_steps, unit="steps after the checkpoint"),
    ]


def _make_run(place: Sequence[str], home: Path, seed: int) -> None:
    """A run that was killed at a step between two checkpoints."""
    settings = {
        **as_published,
        "run.num_steps": 10 * kill_at_step,
        "run.seed": seed,
        "evaluation.every_steps": 0,
        "trainer.checkpoint_every_steps": checkpoint_every_steps,
    }
    words = ("up", "--plain", "--run", run_name, *place, *set_options(settings))
    _seconds_until(f"step {kill_at_step}/", words, home / "up.log")


def _seconds_until(said: str | None, words: Sequence[str], log: Path) -> float:
    """Seconds from the start of a `rollog` command until it says that (then it is killed), or until it ends well."""
    started = time.monotonic()
    child = ChildProcess.start([sys.executable, "-m", "rollog.cli.main", *words], log_path=log)
    try:
        while time.monotonic() < started + _max_wait_seconds:
            if said is not None and said in log.read_text(errors="replace"):
                return time.monotonic() - started
            status = child.poll()
            if status == 0 and said is None:
                return time.monotonic() - started
            if status is not None:
                break
            time.sleep(_tick_seconds)
    finally:
        child.kill()
    lines = "\n".join(child.last_lines())
    raise ChildFailed(f"rollog {' '.join(words)} did not come to {said or 'its end'}:\n{lines}")
