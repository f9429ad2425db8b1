"""Episodes or sessions of twenty turns while workers, environments, agents, endpoint and everybody else are killed.

One run with durable turns on real parts. When it has closed it is audited, trained again and recounted, as every run
of this experiment, and its turns are compared with its samples by code that shares nothing with the product.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is played: who is killed, and what the configuration says of it."""

    name: str
    targets: tuple[Role, ...]
    config: str


_everybody = (Role.WORKER, Role.WORKER, Role.WORKER, Role.TRAINER, Role.DISPATCHER, Role.BROKER)
"""Workers most of all: with them episodes are taken up."""

kinds = {
    "episodes": Kind(
        name="episodes",
        targets=(*_everybody, Role.ENVIRONMENT),
        config="""\
[environment]
name = "benchmarks.chaos.long_game:LongGame"
max_turns = 20
num_train = 4000
""",
    ),
    "agents": Kind(
        name="agents",
        targets=(*_everybody, Role.AGENTS, Role.ENDPOINT, Role.ENDPOINT),
        config="""\
[data]
train = "{prompts}"

[agent]
function = "benchmarks.chaos.long_agent:play"
reward = "agent"
max_turns = 40
max_tokens = 200
timeout_seconds = 600
""",
    ),
}

_template = (
    "{% for each in messages %}{{ each.content }} "
    "{% if each.role == 'assistant' %}{{ eos_token }} {% endif %}{% endfor %}"
)
_num_prompts = 4000

_config = """\
[model]
path = "{model}"
max_context_tokens = 512

{kind}
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
    kind: Kind, *, num_kills: int, seed: int, engine: str, cache: Path, on_progress: Callable[[str], None]
) -> list[Figure]:
    """One run until so many deaths took place. Raises ChildFailed where something is off."""
    with state_directory(cache) as home:
        config = home / "episodes.toml"
        config.write_text(_configuration(kind, engine, cache, home), encoding="utf-8")
        run = chaos_run(
            f"chaos-{kind.name}",
            home,
            ["--config", str(config), "--workers", "2"],
            num_kills=num_kills,
            seed=seed,
            targets=kind.targets,
            on_kill=on_progress,
        )
        for line in verify(run):
            on_progress(line)
        counted = _counted(run)
    if counted.faults:
        raise ChildFailed("turns and samples differ:\n" + "\n".join(counted.faults[:20]))
    return _figures(kind, run, counted)


def _configuration(kind: Kind, engine: str, cache: Path, home: Path) -> str:
    model = home / "chat-model"
    shutil.copytree(prepare_model(cache, "guessing"), model)
    (model / "chat_template.jinja").write_text(_template, encoding="utf-8")
    prompts = home / "prompts.jsonl"
    rows = [{"prompt": "play", "seed": seed} for seed in range(_num_prompts)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    section = kind.config.format(prompts=prompts)
    return _config.format(model=model, engine=engine, durable="true", kind=section)


def _counted(run: ChaosRun) -> KeptTurns:
    decoder = Decoder()
    with broker_of(run) as address:

        def read(topic: str, wanted: str) -> Iterator[Fields]:
            for record in raw_topic(address, run.name, topic):
                name, fields = decoder.decode(record.value)
                if name == wanted:
                    yield fields

        return kept_turns(read("tasks", "RolloutTask"), read("turns", "Turn"), read("samples", "Sample"))


def _figures(kind: Kind, run: ChaosRun, counted: KeptTurns) -> list[Figure]:
    kills = Counter(run.kills)
    return [
        Figure(
            name=f"chaos.{kind.name}.kills",
            value=run.num_kills,
            unit="deaths, the run audited clean and replayed equal",
        ),
        *(
            Figure(name=f"chaos.{kind.name}.kills.{target}", value=number, unit="deaths")
            for target, number in sorted(kills.items())
        ),
        Figure(name=f"chaos.{kind.name}.turns", value=counted.num_turns, unit="turns on the log"),
        Figure(
            name=f"chaos.{kind.name}.resumed", value=counted.num_resumed, unit="attempts that took turns over"
        ),
        Figure(
            name=f"chaos.{kind.name}.served_again",
            value=counted.num_served_again,
            unit="turns not generated again",
        ),
        Figure(
            name=f"chaos.{kind.name}.made_again",
            value=counted.num_made_again,
            unit="turns on the log that could be taken over and were not",
            higher_is_better=False,
        ),
        Figure(
            name=f"chaos.{kind.name}.compared",
            value=counted.num_compared,
            unit="turns of finished samples, equal to the log token by token",
        ),
    ]
