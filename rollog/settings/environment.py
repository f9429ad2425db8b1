"""Configuration of environments: what is played in several turns in place of one response to a prompt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from rollog.settings.section import FIXED, PER_MACHINE, Section

_Parameters = dict[str, JsonValue]


class EnvironmentConfig(Section):
    """An environment that gives the first text, answers each turn of the policy, and rewards it."""

    name: Annotated[str | None, FIXED] = None
    """One of rollog's environments ([environments](environments.md)) or `module:factory`. Left out, rollouts are single
    responses to the prompts of `data`."""
    parameters: Annotated[_Parameters, FIXED] = Field(default_factory=dict)
    """What the environment is made with, by name: lists and tables, too."""
    format: Annotated[Literal["auto", "chat", "text"], FIXED] = "auto"
    """How both speak: `chat` as messages of user (the environment) and assistant in the model's chat template, `text`
    as plain text behind each other. `auto` is `chat` where the tokenizer has a template."""
    system_prompt: Annotated[Annotated[str, Field(min_length=1)] | None, FIXED] = None
    """System message before the first text, for `chat`."""
    max_turns: Annotated[int, Field(ge=1), FIXED] = 16
    """Most turns of a seat in an episode; the environment's own bound counts, too. `sampling.max_tokens` bounds
    each turn, `model.max_context_tokens` the whole."""
    turn_rewards: Annotated[bool, FIXED] = False
    """Whether each turn is trained by the rewards from it on, or all turns by the sum of the episode."""
    num_train: Annotated[int, Field(ge=1), FIXED] = 1000
    """Training episodes that differ: seeds from 0 on. A group plays one of them."""
    num_held_out: Annotated[int, Field(ge=0), FIXED] = 0
    """Held-out episodes: seeds from 2^40 on, which no training sees. An environment that draws its games from the seed
    alone may meet an equal game in both."""
    seats: Annotated[int, Field(ge=1), FIXED] = 1
    """Seats of the environment, all played by the policy. Replicas 0 to `seats` - 1 of a group are those of its first
    episode, and so on: each seat is a sample of its own."""
    python: Annotated[str | None, PER_MACHINE] = None
    """Interpreter that runs the environment, for packages that need one of their own; left out, rollog's."""
    num_processes: Annotated[int, Field(ge=1), PER_MACHINE] = 2
    """Processes of a worker that hold environments."""
    episodes_per_process: Annotated[int, Field(ge=1), PER_MACHINE] = 64
    """Episodes that one process holds at once; all of them fail when it crashes."""
    reset_timeout_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 60.0
    """The episode of an environment that takes longer to begin fails. The environment is closed where that is possible,
    else its process is killed when the other episodes there have left."""
    step_timeout_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 30.0
    """The same for each answer."""
    variables: Annotated[tuple[str, ...], PER_MACHINE] = ()
    """Names of environment variables that the processes get from the worker's, besides those that the processes of
    rewards get."""
    max_memory_bytes: Annotated[int, Field(ge=64 << 20), PER_MACHINE] = 8 << 30
    """Private memory that one process may take (Linux: RLIMIT_DATA)."""
