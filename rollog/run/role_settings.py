"""The settings of a role: its run's manifest, with what may differ from machine to machine on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.dispatcher.settings import DispatcherSettings
from producers.rollout.settings import RolloutSettings
from rollog.kernel.errors import ConfigError
from rollog.kernel.runs import find_run, read_runs
from rollog.settings.settings import Settings
from rollog.settings.sources import Layers, file_layers, split_assignment
from trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollog.kernel.broker.ports import Broker
    from schemas import RunManifest

_local_sections = frozenset({"metrics", "rollout", "supervision"})
_local_keys = frozenset(
    {
        ("broker", "bootstrap_servers"),
        ("broker", "connect_timeout_seconds"),
        ("broker", "max_dead_letters_in_a_row"),
        ("data", "held_out"),
        ("data", "train"),
        ("model", "path"),
        ("model", "tokenizer"),
        ("trainer", "activation_checkpointing"),
        ("trainer", "num_threads"),
        ("trainer", "rank_timeout_seconds"),
        ("weights", "uri"),
    }
)
_named_by_flags = frozenset({("run", "name"), ("run", "prefix")})


def settings_of_run(
    broker: Broker,
    wanted: Settings,
    *,
    config: Path | None = None,
    environment: Mapping[str, str],
    assignments: Sequence[str],
    wait_seconds: float,
) -> tuple[Settings, RunManifest]:
    """Settings and manifest of the run that `wanted` names; what is local in file, environment and `--set` wins.

    Raises RunNotFound when there is no such run in time, ConfigError for a `--set` of what the manifest rules.
    """
    name = wanted.run.name or _only_run(broker, wanted.run.prefix)
    manifest = find_run(broker, wanted.run.prefix, name, wait_seconds=wait_seconds)
    layers = _local_layers(config, environment, assignments)
    ruled = Settings.from_manifest(manifest.config_json)
    return ruled.changed(**_with_address(layers, wanted)), manifest


def is_local(path: Sequence[str]) -> bool:
    """Whether a setting may differ between the roles of one run."""
    return path[0] in _local_sections or tuple(path[:2]) in _local_keys


def belongs_to_the_run(path: Sequence[str]) -> bool:
    """Whether a setting is one of the manifest's that all roles share."""
    return not is_local(path) and tuple(path[:2]) not in _named_by_flags


def shared_out(assignments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`section.key=value` assignments of this machine (or that name the run), and those of the run."""
    of_the_run = tuple(each for each in assignments if belongs_to_the_run(split_assignment(each)[0]))
    return tuple(each for each in assignments if each not in of_the_run), of_the_run


def dispatcher_settings(settings: Settings) -> DispatcherSettings:
    """What the dispatcher needs."""
    return DispatcherSettings(
        run=settings.run_name,
        prefix=settings.run.prefix,
        run_config=settings.run,
        broker=settings.broker,
        groups=settings.groups,
        freshness=settings.freshness,
        data=settings.data,
        sampling=settings.sampling,
        evaluation=settings.evaluation,
        reward=settings.reward,
        dispatch=settings.dispatch,
    )


def rollout_settings(settings: Settings, manifest: RunManifest, home: Path, name: str) -> RolloutSettings:
    """What a rollout worker called `name` needs."""
    return RolloutSettings(
        run=settings.run_name,
        prefix=settings.run.prefix,
        seed=settings.run.seed,
        name=name,
        home=home / "runs" / settings.run_name,
        broker=settings.broker,
        model=settings.model,
        sampling=settings.sampling,
        reward=settings.reward,
        rollout=settings.rollout,
        weights_uri=settings.weights.uri or manifest.weights_uri,
        num_replicas=settings.groups.num_replicas,
    )


def trainer_settings(settings: Settings, manifest: RunManifest, home: Path) -> TrainerSettings:
    """What the trainer needs."""
    return TrainerSettings(
        run=settings.run_name,
        prefix=settings.run.prefix,
        seed=settings.run.seed,
        home=home,
        run_config=settings.run,
        broker=settings.broker,
        model=settings.model,
        groups=settings.groups,
        freshness=settings.freshness,
        sampling_temperature=settings.sampling.temperature,
        algorithm=settings.algorithm.with_budget(settings.sampling.max_tokens),
        optimizer=settings.optimizer,
        trainer=settings.trainer,
        weights_uri=settings.weights.uri or manifest.weights_uri,
        manifest_json=manifest.config_json,
    )


def _local_layers(config: Path | None, environment: Mapping[str, str], assignments: Sequence[str]) -> Layers:
    """What file, environment and flags say about this machine. A file and an environment may say more."""
    layers = Layers() if config is None else file_layers(config).only(is_local)
    layers.add_environment(
        {key: value for key, value in environment.items() if is_local(_variable_path(key))}
    )
    for assignment in assignments:
        path, _ = split_assignment(assignment)
        if path[:2] in _named_by_flags:
            continue
        if not is_local(path):
            raise ConfigError(
                f"--set {assignment}: {'.'.join(path)} belongs to the run and stands in its manifest; "
                "only [metrics], [rollout], addresses and paths may differ from role to role"
            )
        layers.add_flags([assignment])
    return layers


def _variable_path(name: str) -> tuple[str, ...]:
    return tuple(name.removeprefix("ROLLOG_").lower().split("__"))


def _with_address(layers: Layers, wanted: Settings) -> dict[str, dict[str, object]]:
    changes: dict[str, dict[str, object]] = {section: dict(keys) for section, keys in layers.values.items()}
    changes.setdefault("broker", {})["bootstrap_servers"] = wanted.broker.bootstrap_servers
    return changes


def _only_run(broker: Broker, prefix: str) -> str:
    runs = read_runs(broker, prefix)
    if len(runs) == 1:
        return next(iter(runs))
    known = ", ".join(sorted(runs)) or "none"
    raise ConfigError(f"name the run with --run NAME (runs at {broker.address}: {known})")
