"""Episodes of twenty turns while workers, environments, trainer, dispatcher and broker are killed.

One run with durable turns on real parts. When it has closed it is audited, trained again and recounted, as every run
of this experiment, and its turns are compared with its samples by code that shares nothing with the product.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.chaos.checks import broker_of, raw_topic, verify
from benchmarks.chaos.kept_turns import KeptTurns, kept_turns
from benchmarks.chaos.killed_run import chaos_run, state_directory
from benchmarks.chaos.kills import Role
from benchmarks.chaos.raw_log import Decoder
from benchmarks.harness.figures import Figure
from rollog.demo.prepare import prepare_model
from rollog.kernel.errors import ChildFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.chaos.kept_turns import Fields
    from benchmarks.chaos.killed_run import ChaosRun

targets = (
    Role.WORKER,
    Role.WORKER,
    Role.WORKER,
    Role.ENVIRONMENT,
    Role.TRAINER,
    Role.DISPATCHER,
    Role.BROKER,
)
"""Workers most of all: with them episodes are taken up."""

_config = """\
[model]
path = "{model}"
max_context_tokens = 512

[environment]
name = "benchmarks.chaos.long_game:LongGame"
max_turns = 20
num_train = 4000

[groups]
groups_per_batch = 4
group_size = 4
filter_zero_signal = false
max_attempts = 1000
max_lost = 1000

[freshness]
alpha = 3.0

[rollout]
engine = "{engine}"
capacity = 16

[sampling]
max_tokens = 4

[evaluation]
every_steps = 0

[dispatch]
durable_turns = {durable}
lease_seconds = 4.0

[trainer]
checkpoint_every_steps = 3
"""


def measure_killed_episodes(
    *, num_kills: int, seed: int, engine: str, cache: Path, on_progress: Callable[[str], None]
) -> list[Figure]:
    """One run until so many deaths took place. Raises ChildFailed where something is off."""
    with state_directory(cache) as home:
        config = home / "episodes.toml"
        text = _config.format(model=prepare_model(cache, "guessing"), engine=engine, durable="true")
        config.write_text(text, encoding="utf-8")
        run = chaos_run(
            "chaos-episodes",
            home,
            ["--config", str(config), "--workers", "2"],
            num_kills=num_kills,
            seed=seed,
            targets=targets,
            on_kill=on_progress,
        )
        for line in verify(run):
            on_progress(line)
        counted = _counted(run)
    if counted.faults:
        raise ChildFailed("turns and samples differ:\n" + "\n".join(counted.faults[:20]))
    return _figures(run, counted)


def _counted(run: ChaosRun) -> KeptTurns:
    decoder = Decoder()
    with broker_of(run) as address:

        def read(topic: str, wanted: str) -> Iterator[Fields]:
            for record in raw_topic(address, run.name, topic):
                name, fields = decoder.decode(record.value)
                if name == wanted:
                    yield fields

        return kept_turns(read("tasks", "RolloutTask"), read("turns", "Turn"), read("samples", "Sample"))


def _figures(run: ChaosRun, counted: KeptTurns) -> list[Figure]:
    kills = Counter(run.kills)
    return [
        Figure(
            name="chaos.episodes.kills",
            value=run.num_kills,
            unit="deaths, the run audited clean and replayed equal",
        ),
        *(
            Figure(name=f"chaos.episodes.kills.{target}", value=number, unit="deaths")
            for target, number in sorted(kills.items())
        ),
        Figure(name="chaos.episodes.turns", value=counted.num_turns, unit="turns on the log"),
        Figure(
            name="chaos.episodes.resumed", value=counted.num_resumed, unit="attempts that took turns over"
        ),
        Figure(
            name="chaos.episodes.served_again",
            value=counted.num_served_again,
            unit="turns not generated again",
        ),
        Figure(
            name="chaos.episodes.made_again",
            value=counted.num_made_again,
            unit="turns on the log that could be taken over and were not",
            higher_is_better=False,
        ),
        Figure(
            name="chaos.episodes.compared",
            value=counted.num_compared,
            unit="turns of finished samples, equal to the log token by token",
        ),
    ]
