"""Configuration of the dispatcher, the rollout workers, engines and rewards."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollog.kernel.errors import ConfigError
from rollog.settings.named_rewards import (
    CodeReward,
    Component,
    FunctionReward,
    JudgeReward,
    RewardComponent,
    component_named,
    is_reference,
    named_rewards,
)
from rollog.settings.section import FIXED, PER_MACHINE, SecretPart, Section

_Table = dict[str, str | int | float | bool]

_taken_names = frozenset({"reward", "turn_rewards", "own_reward"})
"""What the values of a reward are called beside its components."""
_ending_seconds = 3.0
"""What `code` may take beyond its `total_seconds`: to end a case that ends by nothing else, and its sandbox."""


class DataConfig(Section):
    """The prompts."""

    train: Annotated[str | None, PER_MACHINE, SecretPart.USER_OF_ADDRESS] = None
    """JSONL or Parquet file, or a name for the `datasets` library; left out, the demo's prompts."""
    held_out: Annotated[str | None, PER_MACHINE, SecretPart.USER_OF_ADDRESS] = None
    """Prompts for evaluation, disjoint from `train`; the same forms."""
    train_split: Annotated[str, FIXED] = "train"
    """Split, when `train` is a name."""
    held_out_split: Annotated[str, FIXED] = "test"
    """Split, when `held_out` is a name."""
    prompt_field: Annotated[str, FIXED] = "prompt"
    """Field with plain text, or with a list of chat messages ({"role", "content"})."""
    system_prompt: Annotated[Annotated[str, Field(min_length=1)] | None, FIXED] = None
    """System message put before the messages of each prompt that has none. A prompt of plain text becomes the user's
    message behind it, and the reward function gets the messages."""
    id_field: Annotated[str | None, FIXED] = None
    """Field that identifies a prompt; left out, its line number does."""
    shuffle: Annotated[bool, FIXED] = True
    """Whether each epoch has its own seeded order."""
    num_epochs: Annotated[Annotated[int, Field(ge=1)] | None, FIXED] = None
    """Passes over the prompts; left out, as many as the run needs."""


class SamplingConfig(Section):
    """How training rollouts are drawn. Truncated sampling is refused: mu would not be the trained distribution."""

    temperature: Annotated[float, Field(gt=0), FIXED] = 1.0
    """Divides the logits, in generation and in the trainer."""
    max_tokens: Annotated[int, Field(ge=1), FIXED] = 256
    """Longest response."""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], FIXED] = ()
    """Texts that end a response, besides the model's end of sequence; special tokens of the tokenizer count as they are
    written (`<|im_end|>`). The token that completes one of them is the last one and is trained; the reward function
    sees the response with it, but without special tokens."""
    top_p: Annotated[float, FIXED] = 1.0
    """Must stay 1 for training."""
    top_k: Annotated[int, FIXED] = 0
    """Must stay 0 for training."""
    min_p: Annotated[float, FIXED] = 0.0
    """Must stay 0 for training."""
    repetition_penalty: Annotated[float, FIXED] = 1.0
    """Must stay 1 for training."""

    @model_validator(mode="after")
    def _untruncated(self) -> SamplingConfig:
        neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        for name, value in neutral.items():
            if getattr(self, name) != value:
                message = (
                    f"sampling.{name} = {getattr(self, name)} would make the recorded logprobs differ from the "
                    f"distribution that is trained; set it to {value} (evaluation may use its own)"
                )
                raise ValueError(message)
        return self


class EvaluationConfig(Section):
    """Held-out prompts through tasks of kind evaluation, pinned to a version."""

    every_steps: Annotated[int, Field(ge=0), FIXED] = 10
    """Steps between evaluations; 0: only before the first and after the last step."""
    num_prompts: Annotated[int, Field(ge=1), FIXED] = 256
    """How many held-out prompts, from the first on."""
    sampled: Annotated[bool, FIXED] = True
    """Whether the first and the last evaluation also sample at the training temperature."""
    max_attempts: Annotated[int, Field(ge=1), FIXED] = 3
    """Attempts per prompt before it counts as wrong."""


class RewardConfig(Section):
    """The reward: a function, or components with weights."""

    function: Annotated[str | None, FIXED] = None
    """Name of a ready reward, for example `math` ([rewards](rewards.md)), or `module:function`, called as
    function(prompt, response, **fields of the dataset row); returns a number or a mapping with the key `reward`,
    further components, and `turn_rewards`, a list with one number per turn, where turns have rewards of their own. An
    `async def` function gets many calls at once, on one event loop per process; any other gets one at a time per
    process. Left out, and without `components`, the demo's."""
    components: Annotated[tuple[Component, ...], FIXED] = ()
    """In place of `function`: several of these, `[{ name = "math" }, { name = "length", weight = 0.5, target = 2000,
    limit = 4000 }]`. The reward is the sum of their values, each times its `weight` (1); the record keeps each value,
    without its weight. Options of each name: [ready rewards](#ready-rewards)."""
    timeout_seconds: Annotated[float, Field(gt=0), FIXED] = 10.0
    """A call that takes longer is killed and its sample fails."""
    max_in_flight: Annotated[int, Field(ge=1), PER_MACHINE] = 64
    """Calls that one worker's reward processes have at once, all together; what a judge is asked at once. Also the
    rollouts of a worker that may be scored while their slots are free again, for which it gets other tasks."""
    num_processes: Annotated[int, Field(ge=0), FIXED] = 1
    """Processes that compute rewards; 0 computes them inside the worker, without time-out, limit or environment of
    their own."""
    environment: Annotated[tuple[str, ...], PER_MACHINE] = ()
    """Names of variables that the reward processes get from the worker's environment, for example that of a judge's
    API key; one that a judge names as its `variable` reaches processes of judges only. Without being named they get
    PATH, HOME, LANG, LANGUAGE, LC_*, TMPDIR, TZ, LD_LIBRARY_PATH and PYTHONPATH."""
    max_memory_bytes: Annotated[int, Field(ge=64 << 20), PER_MACHINE] = 8 << 30
    """Private memory that one reward process may take (Linux: RLIMIT_DATA), and each process it starts; beyond that
    its allocations fail."""
    control: Annotated[Literal["none", "shuffled"], FIXED] = "none"
    """`shuffled` gives each training sample the reward of another one: the negative control."""

    late: Annotated[bool, FIXED] = False
    """Whether other programs give training samples their rewards later, through the topic `rewards`
    ([late rewards](rewards.md#late-rewards)). Workers then score evaluations alone."""
    deadline_seconds: Annotated[float, Field(gt=0), FIXED] = 3600.0
    """With `late`: how long a sample waits for its reward, from when the trainer first read it, until it is given up as
    `unrewarded` and made again. A trainer that is started again counts anew."""

    @property
    def identity(self) -> str | None:
        """The reward in one line, as tasks name it: the function, or the components with their weights."""
        if not self.components:
            return self.function
        return " + ".join(f"{component.weight:g} * {component.recorded_as}" for component in self.components)

    @property
    def user_functions(self) -> tuple[str, ...]:
        """Each `module:function` that is called."""
        named = [component.name for component in self.components if isinstance(component, FunctionReward)]
        return (*([self.function] if self.function and is_reference(self.function) else []), *named)

    @model_validator(mode="after")
    def _components_agree(self) -> Self:
        if self.function is not None and self.components:
            raise ValueError(
                f"reward.function = {self.function!r} and reward.components both say what the reward is; leave one "
                "out (reward.components = [])"
            )
        if self.late and self.control == "shuffled":
            raise ValueError(
                'reward.control = "shuffled" exchanges the rewards that workers compute; with reward.late = true they '
                "compute none: leave one of them out"
            )
        for name, count in Counter(component.recorded_as for component in self.components).items():
            if count > 1 or name in _taken_names:
                raise ValueError(
                    f"reward.components: {name!r} names {'several values' if count > 1 else 'something else'} of the "
                    'record; give each component a label of its own: label = "..."'
                )
        for component in self._described:
            if component.needs_time_limit and self.num_processes == 0:
                key = "" if self.components else "reward.function = "
                raise ValueError(
                    f"reward.num_processes = 0 leaves {key}{component.name!r} without a time-out; set it to 1 or more"
                )
            if isinstance(component, JudgeReward):
                self._check_judge(component)
        self._check_code([each for each in self._described if isinstance(each, CodeReward)])
        return self

    @property
    def _described(self) -> tuple[RewardComponent, ...]:
        """The components, or the ready reward that `function` names."""
        if self.function is None or self.function not in named_rewards:
            return self.components
        try:
            return (component_named(self.function),)
        except ConfigError:
            return ()  # it needs options, as `check_files` says

    def _check_judge(self, judge: JudgeReward) -> None:
        if judge.variable is not None and judge.variable not in self.environment:
            raise ValueError(
                f"reward.components: the judge's variable = {judge.variable!r} does not reach its process; add it to "
                f"reward.environment = {list(self.environment)}"
            )
        if judge.request_seconds > self.timeout_seconds:
            raise ValueError(
                f"reward.timeout_seconds = {self.timeout_seconds:g} ends a call before a request of the judge "
                f"(request_seconds = {judge.request_seconds:g}); raise the first above the second times its attempts"
            )

    def _check_code(self, components: list[CodeReward]) -> None:
        # Several share a process, which computes one after another.
        total_seconds = sum(code.total_seconds for code in components)
        longest = total_seconds + _ending_seconds * len(components)
        if longest > self.timeout_seconds:
            raise ValueError(
                f"reward.timeout_seconds = {self.timeout_seconds:g} ends a call before the cases of 'code' have ended "
                f"(total_seconds = {total_seconds:g} and {longest - total_seconds:g} s to end the last case); raise "
                f"the first to {longest:g}"
            )


class DispatchConfig(Section):
    """The dispatcher."""

    scheduling: Annotated[Literal["queue", "batch", "static"], FIXED] = "queue"
    """Who gets the next task, and when. `queue`: the worker with the most free slots, as soon as there is one. For
    comparison: `batch` works in rounds, the next one (of the prompts still missing) once every task of the last has
    ended; `static` deals tasks to the workers in turn, whatever load they have."""
    prefetch_tasks: Annotated[int, Field(ge=0), FIXED] = 8
    """Tasks a worker may hold beyond its capacity and the rollouts that it is scoring."""
    replicate: Annotated[bool, FIXED] = True
    """Whether each replica is a task of its own (prompt replication), which spreads long ones over workers; false: one
    task makes all G and holds G slots until the longest of them ends, which spares a run with one worker records."""
    max_tasks_per_record: Annotated[int, Field(ge=1, le=256), PER_MACHINE] = 64
    """Tasks that one record may hold, of those that one worker gets in one turn of the dispatcher: under load several,
    else one. Workers and a trainer of a release that does not read such records get one task in each; 1 keeps the log
    readable for tools of such a release."""
    lease_seconds: Annotated[float, Field(gt=0), FIXED] = 10.0
    """Silence after which a worker's tasks are taken back."""
    missing_heartbeats: Annotated[int, Field(ge=1), FIXED] = 4
    """Heartbeats from which a consumed task must be absent before it is declared lost."""
    durable_turns: Annotated[bool, FIXED] = False
    """Whether each model call of a training rollout of several turns is on the log, on a topic of its own (`turns`),
    before anybody acts on its answer. After a worker's death another one takes the rollout up from its last turn;
    without, it begins anew. It costs each turn the acknowledgement of the broker, and needs `replicate`."""
    task_timeout_seconds: Annotated[float, Field(gt=0), FIXED] = 600.0
    """A rollout that takes longer ends as failed."""
    stop_timeout_seconds: Annotated[float, Field(gt=0), FIXED] = 20.0
    """How long workers may take to end their tasks after Stop."""


class RolloutConfig(Section):
    """A rollout worker and its engine."""

    engine: Annotated[Literal["vllm", "transformers", "remote", "simulated"], PER_MACHINE] = "vllm"
    """Inference engine; `remote` is a vLLM server elsewhere, which works for one worker
    ([remote engine](remote-engine.md))."""
    server_address: Annotated[str | None, PER_MACHINE, SecretPart.USER_OF_ADDRESS] = None
    """Address of the server (`engine = "remote"`), `http://host:port` or `https://host:port`."""
    server_variable: Annotated[str | None, PER_MACHINE] = None
    """Name of the environment variable of the worker that holds the server's API key."""
    server_file: Annotated[str | None, PER_MACHINE] = None
    """File whose one line is the API key, in place of `server_variable`."""
    server_certificates: Annotated[str | None, PER_MACHINE] = None
    """File of certificates (PEM) that an `https` server's is checked against; left out, those of the system."""
    server_call_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 30.0
    """Time that the server has for a call that is neither a generation nor a load."""
    server_load_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 600.0
    """Time that the server has to load a version."""
    server_start_seconds: Annotated[float, Field(ge=0), PER_MACHINE] = 300.0
    """Time that a worker waits at its start for the server to answer."""
    capacity: Annotated[int, Field(ge=1), PER_MACHINE] = 64
    """Rollouts generated at once: the engine's slots. Scoring takes none, up to `reward.max_in_flight`."""
    reload: Annotated[Literal["keep", "drain", "abort"], PER_MACHINE] = "keep"
    """What running rollouts do when new weights arrive: `keep` freezes them and goes on under the new ones, `drain`
    lets them finish under the old ones and begins no others from when the new ones are fetched (of an episode the turns
    that are being made; the next ones are made under the new ones), `abort` takes them out of the engine and hands them
    in again, with the tokens they have, under the new ones."""
    max_resumes: Annotated[int, Field(ge=0), PER_MACHINE] = 8
    """How often one rollout is aborted and resumed (`reload = "abort"`); from then on it is kept, as by `keep`."""
    heartbeat_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 0.5
    """Time between two heartbeats; where rewards take long, more are written as scoring frees slots."""
    kv_cache_bytes: Annotated[Annotated[int, Field(ge=1 << 20)] | None, PER_MACHINE] = None
    """Memory for attention state (vLLM). Left out: on a CPU room for `capacity` sequences of
    `model.max_context_tokens`, at most a quarter of the free memory; on a GPU what `gpu_memory_utilization` leaves.
    The worker logs how many sequences fit."""
    gpu_memory_share: Annotated[Annotated[float, Field(gt=0, le=1)] | None, PER_MACHINE] = None
    """Share of a GPU's memory that vLLM takes; left out, what `rollog up` finds to fit ([placement]), else vLLM's own
    choice."""
    num_threads: Annotated[Annotated[int, Field(ge=1)] | None, PER_MACHINE] = None
    """CPU threads of the engine; left out, half of the machine's processors, which the workers of a `rollog up`
    share."""
    max_in_flight_bytes: Annotated[int, Field(ge=1 << 20), PER_MACHINE] = 64 << 20
    """Sample bytes sent and not yet acknowledged."""
    load_attempts: Annotated[int, Field(ge=1), PER_MACHINE] = 3
    """Tries to load a version before the worker leaves."""
    first_load_tolerance: Annotated[float, Field(ge=0), PER_MACHINE] = 0.25
    """Nats by which the engine's log-probabilities may differ from the trainer's in the mean, compared after the
    first load, and after the one that follows version 0; beyond it the worker ends. 0 compares nothing."""
    engine_args: Annotated[_Table, PER_MACHINE, SecretPart.NAMED_ENTRIES] = Field(default_factory=dict)
    """Further arguments of the engine (vLLM: AsyncEngineArgs)."""

    @model_validator(mode="after")
    def _server_is_named(self) -> Self:
        if self.engine == "remote" and self.server_address is None:
            raise ValueError(
                'rollout.engine = "remote" needs rollout.server_address, such as "http://127.0.0.1:8000"'
            )
        if self.server_variable is not None and self.server_file is not None:
            raise ValueError(
                "rollout.server_variable and rollout.server_file both say where the key is; leave one out"
            )
        return self
