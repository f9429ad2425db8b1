"""What file, environment and flags of a machine count for in a run that exists: local values, and which run it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError
from rollog.settings.scopes import is_local, names_the_run
from rollog.settings.settings import Settings
from rollog.settings.sources import Layers, split_assignment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rollog.settings.sources import KeyPath


def local_layers(config: Path | None, environment: Mapping[str, str], assignments: Sequence[str]) -> Layers:
    """The values of this machine, later sources over earlier ones.

    A file and an environment may say more, because the run may have been created with them. Raises ConfigError for
    unknown keys, values that do not fit their keys (where the manifest rules, too), and assignments of what it rules.
    """
    layers = Layers()
    if config is not None:
        layers.add_config(config)
    layers.add_environment(environment)
    layers.check_values()
    layers = layers.only(_counts_here)
    for assignment in assignments:
        layers.add_flags([assignment])
        path, _ = split_assignment(assignment)
        if not _counts_here(path):
            raise ConfigError(
                f"--set: {'.'.join(path)} belongs to the run and stands in its manifest; "
                "only [metrics], [rollout], addresses and paths may differ from role to role"
            )
    return layers


def settings_of_run(
    manifest_json: str, layers: Layers, *, placed: Callable[[Settings], Settings] = lambda settings: settings
) -> Settings:
    """The settings of a run's manifest with what `layers` say of this machine on top.

    `placed` says where the manifest's files are on this machine. Raises ConfigError when another version of rollog
    wrote the manifest.
    """
    return placed(Settings.from_manifest(manifest_json)).changed(**layers.only(is_local).values)


def _counts_here(path: KeyPath) -> bool:
    return is_local(path) or names_the_run(path)
