"""The whole configuration of a run: all sections, the checks between them, and the form for the manifest.

`rollog.settings.sources` fills it from a TOML file, the environment and flags. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, ValidationError, model_validator

from rollog.kernel.addresses import public_address, public_value
from rollog.kernel.broker.topics import OptionalTopic
from rollog.kernel.errors import ConfigError
from rollog.settings.agent import AgentConfig
from rollog.settings.environment import EnvironmentConfig
from rollog.settings.generation import (
    DataConfig,
    DispatchConfig,
    EvaluationConfig,
    RewardConfig,
    RolloutConfig,
    SamplingConfig,
)
from rollog.settings.groups import FreshnessConfig, GroupConfig
from rollog.settings.named_rewards import component_named, is_reference
from rollog.settings.registry import RegistryConfig
from rollog.settings.run import (
    BrokerConfig,
    MetricsConfig,
    ModelConfig,
    PlacementConfig,
    RunConfig,
    SupervisionConfig,
    WeightsConfig,
)
from rollog.settings.section import (
    Scope,
    SecretPart,
    Section,
    formerly_of,
    scope_of,
    secret_part_of,
)
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo


class Settings(Section):
    """Everything that can be configured, one section per component."""

    run: RunConfig = Field(default_factory=RunConfig)
    broker: BrokerConfig = Field(default_factory=BrokerConfig)
    registry: RegistryConfig = Field(default_factory=RegistryConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    groups: GroupConfig = Field(default_factory=GroupConfig)
    freshness: FreshnessConfig = Field(default_factory=FreshnessConfig)
    weights: WeightsConfig = Field(default_factory=WeightsConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig)
    dispatch: DispatchConfig = Field(default_factory=DispatchConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    supervision: SupervisionConfig = Field(default_factory=SupervisionConfig)
    placement: PlacementConfig = Field(default_factory=PlacementConfig)

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        for problem in _disagreements(self):
            raise ValueError(problem)
        return self

    @property
    def run_name(self) -> str:
        """The name of the run. Raises ConfigError while it has none."""
        if self.run.name is None:
            raise ConfigError("run.name is missing: name the run with --run NAME")
        return self.run.name

    @property
    def has_registry(self) -> bool:
        """Whether records of the run are framed by a schema registry."""
        return self.broker.framing == "registry"

    @property
    def response_budget(self) -> int:
        """Most tokens that the policy makes in one rollout: of a response, of an episode's turns, of a session."""
        if self.agent.is_given:
            return self.agent.max_tokens
        if self.environment.name is None:
            return self.sampling.max_tokens
        return min(self.model.max_context_tokens, self.environment.max_turns * self.sampling.max_tokens)

    @property
    def optional_topics(self) -> tuple[OptionalTopic, ...]:
        """Topics that this run has beyond those of every run."""
        asked = {OptionalTopic.TURNS: self.dispatch.durable_turns, OptionalTopic.REWARDS: self.reward.late}
        return tuple(topic for topic, is_asked in asked.items() if is_asked)

    def changed(self, **sections: dict[str, Any]) -> Settings:
        """These settings with some keys replaced: `changed(run={"name": "first"})`."""
        merged = self.model_dump()
        for section, keys in sections.items():
            merged[section].update(keys)
        return Settings.model_validate(merged)

    def to_manifest(self) -> str:
        """The configuration as the run's manifest holds it: without what is declared secret."""
        dumped = self.model_dump(mode="json")
        for section, keys in dumped.items():
            declared = section_class(section).model_fields
            dumped[section] = {key: _for_manifest(declared[key], value) for key, value in keys.items()}
        return json.dumps(dumped, sort_keys=True)

    @classmethod
    def from_manifest(cls, text: str) -> Settings:
        """The configuration of a manifest; keys younger than it are as their `Formerly` says.

        Raises ConfigError when another version of rollog wrote it and it does not fit.
        """
        try:
            return cls.model_validate_json(_with_former_values(text))
        except ValidationError as error:
            raise ConfigError(
                f"the configuration in the run's manifest does not fit this version of rollog ({error}); "
                "use the version that started the run"
            ) from error


def section_class(name: str) -> type[Section]:
    """The class of the section `name`. Raises KeyError where there is none."""
    declared = Settings.model_fields[name].annotation
    assert isinstance(declared, type)
    assert issubclass(declared, Section)
    return declared


def _with_former_values(text: str) -> str:
    """The text of a manifest with what it leaves out by being older than a key. What is no manifest stays as it is."""
    try:
        sections = json.loads(text)
    except ValueError:
        return text
    for name in Settings.model_fields:
        for key, field in section_class(name).model_fields.items():
            former = formerly_of(field)
            if former is not None and isinstance(sections, dict):
                section = sections.setdefault(name, {})
                if isinstance(section, dict):
                    section.setdefault(key, former.value)
    return json.dumps(sections)


def by_key(manifest_json: str) -> dict[str, object]:
    """A configuration by dotted key."""
    sections: dict[str, dict[str, object]] = json.loads(manifest_json)
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


def by_section(changes: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The opposite: values by dotted key as `Settings.changed` takes them."""
    sections: dict[str, dict[str, object]] = {}
    for dotted, value in changes.items():
        section, _, key = dotted.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def config_sha256(manifest_json: str) -> str:
    """Identity of a configuration, as in the manifest."""
    return hashlib.sha256(manifest_json.encode()).hexdigest()


def check_files(settings: Settings) -> None:
    """Look for what the settings name. Raises ConfigError, naming key, value and remedy."""
    _check_model_directory("model.path", settings.model.path, "config.json")
    _check_model_directory("model.tokenizer", settings.model.tokenizer, None)
    _check_dataset("data.train", settings.data.train)
    _check_dataset("data.held_out", settings.data.held_out)
    _check_reward(settings.reward)
    is_scored_outside = settings.reward.late and settings.data.held_out is None
    has_reward = settings.reward.identity is not None or settings.agent.reward == "agent" or is_scored_outside
    if settings.data.train is not None and not has_reward:
        raise ConfigError(
            f"data.train = {public_address(settings.data.train)!r} needs a reward function; "
            'set reward.function = "module:function", or name a ready one, for example "math"'
        )


def with_absolute_paths(settings: Settings) -> Settings:
    """The settings with local files and directories named from the root, so that any role finds them."""
    model, data = settings.model, settings.data
    return settings.changed(
        model={"path": _absolute(model.path), "tokenizer": _absolute(model.tokenizer)},
        data={"train": _absolute(data.train), "held_out": _absolute(data.held_out)},
    )


def _disagreements(settings: Settings) -> list[str]:
    found = []
    if settings.sampling.max_tokens >= settings.model.max_context_tokens:
        found.append(
            f"sampling.max_tokens = {settings.sampling.max_tokens} leaves no room for a prompt within "
            f"model.max_context_tokens = {settings.model.max_context_tokens}; lower the first or raise the "
            "second"
        )
    if settings.broker.min_insync_replicas > settings.broker.replication_factor:
        found.append(
            f"broker.min_insync_replicas = {settings.broker.min_insync_replicas} is more than "
            f"broker.replication_factor = {settings.broker.replication_factor}: no record could be written"
        )
    if settings.trainer.num_minibatches > settings.groups.groups_per_batch * settings.groups.group_size:
        found.append(
            f"trainer.num_minibatches = {settings.trainer.num_minibatches} is more than the rollouts of a "
            f"batch ({settings.groups.groups_per_batch} groups of {settings.groups.group_size})"
        )
    if settings.groups.group_size == 1 and settings.groups.filter_zero_signal:
        found.append(
            "groups.group_size = 1 with groups.filter_zero_signal = true filters every group (all rewards of "
            "a group are equal); raise the first or set the second to false"
        )
    found += _disagreements_with_environment(settings) + _disagreements_with_agent(settings)
    found += _disagreements_with_durable_turns(settings)
    lengths = settings.groups.response_tokens_mean_bounds
    longest = settings.sampling.max_tokens
    if settings.environment.name is not None:
        longest = settings.model.max_context_tokens
    if settings.agent.is_given:
        longest = settings.agent.max_tokens
    if lengths is not None and lengths[0] > longest:
        found.append(
            f"groups.response_tokens_mean_bounds = {list(lengths)} filters every group: no response is longer than "
            f"sampling.max_tokens = {settings.sampling.max_tokens}; lower the first bound or raise max_tokens"
        )
    return found


def _disagreements_with_environment(settings: Settings) -> list[str]:
    environment = settings.environment
    if environment.name is None:
        defaults = type(environment)().model_dump()
        given = [key for key, value in environment.model_dump().items() if value != defaults[key]]
        return [f"environment.{key} is set and environment.name is not: name an environment" for key in given]
    found = []
    if settings.reward.late:
        found.append(
            f"environment.name = {environment.name!r} gives its episodes their rewards, but reward.late = true waits "
            "for them from elsewhere; leave one of them out"
        )
    own: dict[str, object] = {
        "data.train": settings.data.train,
        "data.held_out": settings.data.held_out,
        "data.system_prompt": settings.data.system_prompt,
        "reward.function": settings.reward.function,
        "reward.components": [component.name for component in settings.reward.components],
    }
    for key, value in own.items():
        if value:
            found.append(
                f"environment.name = {environment.name!r} brings its own texts and rewards, but {key} = {value!r} is "
                "set, too; leave one of them out (a system message is environment.system_prompt)"
            )
    return [*found, *_seats_left_over(settings)]


def _seats_left_over(settings: Settings) -> list[str]:
    """Where a group would not be whole episodes."""
    seats = settings.environment.seats
    counts = {
        "groups.group_size": settings.groups.group_size,
        "groups.redundant_replicas": settings.groups.redundant_replicas,
    }
    return [
        f"{key} = {count} is no multiple of environment.seats = {seats}: a group is made of whole episodes, a rollout "
        "for each seat; change one of them"
        for key, count in counts.items()
        if count % seats
    ]


def _disagreements_with_durable_turns(settings: Settings) -> list[str]:
    if not settings.dispatch.durable_turns:
        return []
    found = []
    if not settings.dispatch.replicate:
        found.append(
            "dispatch.durable_turns = true keeps turns by replica, but dispatch.replicate = false makes one task of "
            "all; set replicate to true"
        )
    if settings.environment.seats > 1:
        found.append(
            "dispatch.durable_turns = true keeps the turns of one seat, environment.seats is "
            f"{settings.environment.seats}: leave one of them out"
        )
    if settings.environment.name is None and not settings.agent.is_given:
        found.append(
            "dispatch.durable_turns = true keeps the turns of rollouts that have several; name an environment or an "
            "agent, or leave it out"
        )
    return found


def _disagreements_with_agent(settings: Settings) -> list[str]:
    agent = settings.agent
    if not agent.is_given:
        defaults = type(agent)().model_dump()
        given = [key for key, value in agent.model_dump().items() if value != defaults[key]]
        return [
            f"agent.{key} is set and there is no agent: name one as agent.function or agent.command"
            for key in given
        ]
    found = []
    if settings.environment.name is not None:
        found.append(
            f"environment.name = {settings.environment.name!r} and agent {agent.name!r} both say what a rollout is; "
            "leave one out"
        )
    if settings.data.train is None:
        found.append(f"agent {agent.name!r} needs prompts: set data.train")
    if agent.reward == "agent" and settings.reward.late:
        found.append(
            'agent.reward = "agent" gives every session the reward that the agent returns, but reward.late = true '
            "waits for it from elsewhere; leave one of them out"
        )
    if agent.reward == "agent" and settings.reward.identity is not None:
        found.append(
            f'agent.reward = "agent" and reward = {settings.reward.identity!r} both say what the reward is; leave one '
            "out"
        )
    return found


def _looks_like_path(value: str) -> bool:
    if value.startswith(("/", ".", "~")) or value.endswith((".jsonl", ".json", ".parquet")):
        return True
    first, separator, _ = value.partition("/")
    return bool(separator) and Path(first).is_dir()


def _check_model_directory(key: str, value: str | None, needed_file: str | None) -> None:
    if value is None:
        return
    path, shown = Path(value).expanduser(), public_address(value)
    if path.is_dir():
        if needed_file is not None and not (path / needed_file).is_file():
            raise ConfigError(
                f"{key} = {shown!r} has no {needed_file}; name a directory written by save_pretrained()"
            )
        return
    if path.exists():
        raise ConfigError(f"{key} = {shown!r} is a file; name the directory it is in")
    if _looks_like_path(value) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", value):
        raise ConfigError(f"{key} = {shown!r} does not exist; name a directory or a Hugging Face model")


def _check_dataset(key: str, value: str | None) -> None:
    if value is None:
        return
    path, shown = Path(value).expanduser(), public_address(value)
    if path.is_dir():
        raise ConfigError(f"{key} = {shown!r} is a directory; name a JSONL or Parquet file in it")
    if _looks_like_path(value) and not path.is_file():
        raise ConfigError(f"{key} = {shown!r} does not exist; name a JSONL or Parquet file")


def _check_reward(reward: RewardConfig) -> None:
    """A ready reward is known and needs no options. What else its name asks for, `RewardConfig` has looked at."""
    if reward.function is not None and not is_reference(reward.function):
        component_named(reward.function)


def _absolute(value: str | None) -> str | None:
    if value is None or not Path(value).expanduser().exists():
        return value
    return str(Path(value).expanduser().resolve())


def _for_manifest(declared: FieldInfo, value: Any) -> Any:
    if scope_of(declared) is Scope.SECRET:
        return declared.get_default(call_default_factory=True)
    match secret_part_of(declared):
        case SecretPart.USER_OF_ADDRESS if value is not None:
            return public_address(value)
        case SecretPart.NAMED_ENTRIES:
            return public_value(value)
        case _:
            return value
