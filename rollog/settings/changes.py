"""Which changes may be asked for while a run goes on, and which of them are changes at all.

Pure. What somebody asks for is completed here (a new `algorithm.type` brings its defaults) and checked; what the
ledger has recorded is complete and goes straight to `rollog.settings.in_force`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from rollog.kernel.errors import ConfigError
from rollog.settings.scopes import amendable_keys
from rollog.settings.settings import by_key, by_section
from rollog.settings.training import AlgorithmConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollog.settings.in_force import AmendableSections
    from rollog.settings.section import Section
    from rollog.settings.settings import Settings

Changes = dict[str, object]
"""New values, as JSON has them, by dotted key."""

_algorithm = "algorithm."


def new_changes(in_force: AmendableSections, wanted: Mapping[str, object], *, version: int) -> Changes:
    """Those of `wanted` that differ from what is in force at `version`, the policy version that the run has come to.

    Raises ConfigError, naming every key, for what cannot change, or cannot change any more.
    """
    refuse_other_keys(wanted, amendable_keys, "cannot change after a run has begun")
    wanted = following_type(in_force.algorithm, wanted)
    after = in_force.with_changes(wanted)
    changes = {
        key: _value(after, key) for key in sorted(wanted) if _value(after, key) != _value(in_force, key)
    }
    if after.algorithm.needs_values != in_force.algorithm.needs_values:
        raise ConfigError(
            f"algorithm.advantage = {after.algorithm.advantage!r} instead of {in_force.algorithm.advantage!r}: the "
            "value head of 'gae' is made when a run begins, or never; start a new run from this one's weights"
        )
    if "run.num_steps" in changes:
        _check_num_steps(version, in_force.run.num_steps, after.run.num_steps)
    return changes


def resumed_changes(in_force: Settings, wanted: Mapping[str, object], *, run: str, is_over: bool) -> Changes:
    """Those of `wanted` that differ from what is in force, for a run that is to go on.

    Beside another algorithm.type all that is said of [algorithm]: the type brings defaults for what is left out.
    Raises ConfigError, naming every key, for what cannot change, does not fit, or comes after the end of the run.
    """
    before = by_key(in_force.to_manifest())
    different = {key for key, value in wanted.items() if before.get(key) != value}
    of_type = {key for key in wanted if key.startswith(_algorithm) and "algorithm.type" in different}
    different |= of_type
    refuse_other_keys(
        different, amendable_keys, f"cannot change: run {run} keeps it from its beginning to its end"
    )
    try:
        resolved = in_force.changed(**by_section({key: wanted[key] for key in different}))
    except ValidationError as error:
        problems = "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
        raise ConfigError(f"{shown(wanted)}: {problems}") from error
    after = by_key(resolved.to_manifest())
    changes = {key: after[key] for key in sorted(different) if key in of_type or after[key] != before[key]}
    if changes and is_over:
        raise ConfigError(
            f"run {run} is over: {shown(changes)} would change nothing; name a new run with --run"
        )
    return changes


def following_type(before: AlgorithmConfig, changes: Mapping[str, object]) -> Changes:
    """The changes, and what a new `algorithm.type` brings with it. Raises ConfigError for an unknown type."""
    of_algorithm = {
        key.removeprefix(_algorithm): value for key, value in changes.items() if key.startswith(_algorithm)
    }
    try:
        complete = changes_by_type(before, of_algorithm)
    except ValidationError as error:
        raise ConfigError(
            f"algorithm.type = {changes['algorithm.type']!r}: {error.errors()[0]['msg']}"
        ) from error
    return dict(changes) | {f"{_algorithm}{key}": value for key, value in complete.items()}


def changes_by_type(before: AlgorithmConfig, changes: Mapping[str, object]) -> Changes:
    """Changes of the algorithm, by key, and with a new type what follows from it.

    A key that stands at the default of the old type gets the default of the new one; what was set otherwise, or is
    among `changes`, stays. Raises pydantic's ValidationError for an unknown type.
    """
    wanted = changes.get("type", before.type)
    if wanted == before.type:
        return dict(changes)
    old = AlgorithmConfig(type=before.type).model_dump()
    new = AlgorithmConfig.model_validate({"type": wanted}).model_dump()
    now = before.model_dump()
    following = {key: new[key] for key in new if now[key] == old[key] != new[key]}
    return following | dict(changes)


def refuse_other_keys(keys: Iterable[str], allowed: Iterable[str], why: str) -> None:
    """Raise ConfigError where one of `keys` is not allowed, with the list of those that are."""
    allowed = sorted(allowed)
    others = sorted(set(keys) - set(allowed))
    if others:
        raise ConfigError(f"{', '.join(others)} {why}; what can be set here: {', '.join(allowed)}")


def shown(changes: Mapping[str, object]) -> str:
    """Changes for a message: `optimizer.learning_rate = 0.0001, run.num_steps = 80`."""
    return ", ".join(f"{key} = {as_text(value)}" for key, value in changes.items())


def as_text(value: object) -> str:
    """A value as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _check_num_steps(version: int, planned: int, wanted: int) -> None:
    if version >= planned:
        raise ConfigError(
            f"run.num_steps = {wanted}: the run has made its {planned} steps already, and its workers may have been "
            "stopped; start a new run from its weights"
        )
    if wanted <= version:
        raise ConfigError(
            f"run.num_steps = {wanted}: version {version} is made already; give a larger number"
        )


def _value(sections: AmendableSections, key: str) -> object:
    section, _, name = key.partition(".")
    model: Section = getattr(sections, section)
    return model.model_dump(mode="json")[name]
