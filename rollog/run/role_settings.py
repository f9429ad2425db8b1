"""What each role needs of a run's settings: which sections, and what is derived for it. Built here and nowhere else."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from producers.dispatcher.settings import DispatcherSettings
from producers.rollout.settings import RolloutSettings
from rollog.kernel.shared_memory import shared_directory
from rollog.settings.settings import Settings
from trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from pathlib import Path

    from schemas import RunManifest


def dispatcher_settings(settings: Settings, home: Path) -> DispatcherSettings:
    """What the dispatcher needs; its snapshot lies below `home`."""
    return DispatcherSettings(
        run=settings.run_name,
        prefix=settings.run.prefix,
        run_config=settings.run,
        snapshot=home / "runs" / settings.run_name / "dispatcher-snapshot.json",
        **_sections(settings, DispatcherSettings),
    )


def rollout_settings(settings: Settings, manifest: RunManifest, home: Path, name: str) -> RolloutSettings:
    """What a rollout worker called `name` needs."""
    return RolloutSettings(
        run=settings.run_name,
        prefix=settings.run.prefix,
        seed=settings.run.seed,
        name=name,
        home=home / "runs" / settings.run_name,
        weights_uri=settings.weights.uri or manifest.weights_uri,
        weights_wait_seconds=settings.weights.wait_seconds,
        shared=_shared_directory(settings, manifest),
        num_replicas=settings.groups.num_replicas,
        durable_turns=settings.dispatch.durable_turns,
        adapter_rank=settings.trainer.published_rank,
        **_sections(settings, RolloutSettings),
    )


def trainer_settings(settings: Settings, manifest: RunManifest, home: Path) -> TrainerSettings:
    """What the trainer needs."""
    sections = _sections(settings, TrainerSettings)
    return TrainerSettings(
        run=settings.run_name,
        prefix=settings.run.prefix,
        seed=settings.run.seed,
        home=home,
        run_config=settings.run,
        sampling_temperature=settings.sampling.temperature,
        weights_uri=settings.weights.uri or manifest.weights_uri,
        weights_wait_seconds=settings.weights.wait_seconds,
        shared=_shared_directory(settings, manifest),
        has_patches=settings.weights.patches == "auto",
        manifest_json=manifest.config_json,
        evaluated_every_steps=settings.evaluation.every_steps,
        reward_deadline_seconds=settings.reward.deadline_seconds if settings.reward.late else None,
        **sections | {"algorithm": settings.algorithm.with_budget(settings.response_budget)},
    )


def _shared_directory(settings: Settings, manifest: RunManifest) -> Path | None:
    """What trainer and workers of this machine share; two runs do not have all three names in common."""
    uri = settings.weights.uri or manifest.weights_uri
    return shared_directory(settings.weights.lane, settings.run.prefix, settings.run_name, uri)


def _sections(
    settings: Settings, role: type[DispatcherSettings | RolloutSettings | TrainerSettings]
) -> dict[str, Any]:
    """The sections that a role has under their own names; `run` is the name of the run there."""
    wanted = {field.name for field in fields(role)} & Settings.model_fields.keys()
    return {name: getattr(settings, name) for name in wanted - {"run"}}
