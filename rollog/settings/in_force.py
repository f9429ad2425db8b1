"""What is in force at a revision of a run: the manifest's settings under the changes that the ledger holds by then.

Pure. Changes come by dotted key, their values as JSON has them:

    manifest                                   optimizer.learning_rate = 3e-4, run.num_steps = 60
    revision 1 {"optimizer.learning_rate": 1e-4}    in force at 1:  1e-4, 60
    revision 2 {"run.num_steps": 80}                in force at 2:  1e-4, 80

Trainer, dispatcher, `rollog resume`, export and the live view all ask here, with the changes that
`LedgerState.changed_settings` has gathered up to the revision. The audit computes the same by itself, on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from rollog.kernel.errors import ConfigError
from rollog.settings.section import Section
from rollog.settings.settings import Settings, by_section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.settings.groups import FreshnessConfig
    from rollog.settings.run import RunConfig
    from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig

AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendableSections:
    """The sections that have amendable keys, under their names in the configuration."""

    run: RunConfig
    freshness: FreshnessConfig
    algorithm: AlgorithmConfig
    optimizer: OptimizerConfig
    trainer: TrainerConfig

    def with_changes(self, changes: Mapping[str, object]) -> AmendableSections:
        """The sections under these changes. Raises ConfigError for keys and values that do not fit."""
        names = by_section(changes)
        known = {field.name for field in fields(self)}
        if others := sorted(names.keys() - known):
            raise ConfigError(f"section [{others[0]}] has nothing that changes while a run goes on")
        return replace(self, **{name: section_in_force(name, getattr(self, name), changes) for name in names})


def section_in_force(name: str, section: AnySection, changes: Mapping[str, object]) -> AnySection:
    """`section`, which is called `name`, under those of the changes that are its own.

    Raises ConfigError for keys and values that do not fit.
    """
    own = by_section(changes).get(name)
    if not own:
        return section
    try:
        return type(section).model_validate(section.model_dump() | own)
    except ValidationError as error:
        shown = ", ".join(f"{name}.{key} = {value!r}" for key, value in own.items())
        raise ConfigError(f"{shown}: {error.errors()[0]['msg']}") from error


def settings_in_force(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """The manifest's settings under the changes. Raises ConfigError for keys and values that do not fit."""
    names = by_section(changes)
    if others := sorted(names.keys() - Settings.model_fields.keys()):
        raise ConfigError(f"section [{others[0]}] is not known")
    return settings.model_copy(
        update={name: section_in_force(name, getattr(settings, name), changes) for name in names}
    )


def num_steps_in_force(configured: int, changes: Mapping[str, object]) -> int:
    """Training steps after which the run ends; `configured` is `run.num_steps` of the manifest."""
    return int(str(changes.get("run.num_steps", configured)))
