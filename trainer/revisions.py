"""Settings that change while a run goes on: which may, and what is in force at a step.

Pure. The ledger's amend records hold changes by dotted key (`{"optimizer.learning_rate": 0.0001}`); every step names
the revision it was taken under, so a redo trains each step under the settings of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rollog.kernel.errors import ConfigError, LedgerError
from rollog.settings.groups import FreshnessConfig
from rollog.settings.training import AlgorithmConfig, OptimizerConfig, TrainerConfig, changes_by_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollog.kernel.config import Section
    from rollog.rules.ledger_state import LedgerState
    from trainer.settings import TrainerSettings

Changes = dict[str, object]
"""New values, as JSON has them, by dotted key."""

_attributes = {
    "run": "run_config",
    "freshness": "freshness",
    "algorithm": "algorithm",
    "optimizer": "optimizer",
    "trainer": "trainer",
}
engine_keys = frozenset(
    {
        "trainer.engine",
        "trainer.zero_stage",
        "trainer.reproducible",
        "trainer.packing",
        "trainer.lora_rank",
        "trainer.lora_alpha",
        "trainer.lora_targets",
    }
)
"""What another engine is made with: weights depend on it, and an optimizer's state under one fits no other."""

_bound_to_the_run = engine_keys | frozenset(
    {
        "trainer.num_ranks",
        "trainer.num_threads",
        "trainer.activation_checkpointing",
        "trainer.rank_timeout_seconds",
        "trainer.transaction_timeout_seconds",
        "freshness.action",
        "freshness.protect_after",
        "freshness.patience_seconds",
    }
)


def _keys(section: str, model: type[Section]) -> set[str]:
    return {f"{section}.{name}" for name in model.model_fields}


training_keys = frozenset(
    _keys("algorithm", AlgorithmConfig)
    | _keys("optimizer", OptimizerConfig)
    | engine_keys
    | {"trainer.num_epochs", "trainer.num_minibatches", "trainer.micro_batch_tokens"}
)
"""What decides about the weights that recorded samples give."""

planning_keys = frozenset(
    {"trainer.num_epochs", "trainer.num_minibatches", "trainer.micro_batch_tokens", "trainer.packing"}
)
"""What decides how a batch is cut up."""

amendable_keys = frozenset(
    (
        _keys("algorithm", AlgorithmConfig)
        | _keys("optimizer", OptimizerConfig)
        | _keys("trainer", TrainerConfig)
        | _keys("freshness", FreshnessConfig)
        | {"run.num_steps"}
    )
    - _bound_to_the_run
)
"""What may change on resume: only the trainer acts on it, or everybody reads it in the ledger."""


def amended(settings: TrainerSettings, changes: Mapping[str, object]) -> TrainerSettings:
    """The settings with these keys replaced. Raises ConfigError for values that do not fit."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    replaced: dict[str, Any] = {}
    for section, values in sections.items():
        old: Section = getattr(settings, _attributes[section])
        try:
            replaced[_attributes[section]] = type(old).model_validate(old.model_dump() | values)
        except ValidationError as error:
            shown = ", ".join(f"{section}.{name} = {value!r}" for name, value in values.items())
            raise ConfigError(f"{shown}: {error.errors()[0]['msg']}") from error
    return replace(settings, **replaced)


def changed_by_type(settings: TrainerSettings, changes: Mapping[str, object]) -> TrainerSettings:
    """The settings with these keys replaced, and with a new `algorithm.type` its defaults.

    For what somebody asks for. What the ledger has recorded is complete: it goes through `amended`. Raises ConfigError.
    """
    return amended(settings, _following_type(settings, changes))


def settings_at(settings: TrainerSettings, ledger: LedgerState, revision: int) -> TrainerSettings:
    """What the manifest's `settings` became by `revision`. Raises LedgerError where an amend record does not fit."""
    try:
        return amended(settings, ledger.changed_settings(revision))
    except (ConfigError, KeyError, AttributeError) as error:
        raise LedgerError(
            f"the settings of revision {revision} in the ledger do not fit this version of rollog ({error}); "
            "use the version that wrote them"
        ) from error


def new_changes(ledger: LedgerState, settings: TrainerSettings, wanted: Mapping[str, object]) -> Changes:
    """Those of `wanted` that differ from the settings in force, their values as JSON has them.

    Raises ConfigError, naming every key, for what cannot change, or cannot change any more.
    """
    refuse_other_keys(wanted, amendable_keys, "cannot change after a run has begun")
    wanted = _following_type(settings, wanted)
    after = amended(settings, wanted)
    changes = {
        key: _value(after, key) for key in sorted(wanted) if _value(after, key) != _value(settings, key)
    }
    if after.algorithm.needs_values != settings.algorithm.needs_values:
        raise ConfigError(
            f"algorithm.advantage = {after.algorithm.advantage!r} instead of {settings.algorithm.advantage!r}: the "
            "value head of 'gae' is made when a run begins, or never; start a new run from this one's weights"
        )
    if "run.num_steps" in changes:
        _check_num_steps(ledger, settings.run_config.num_steps, after.run_config.num_steps)
    return changes


def _following_type(settings: TrainerSettings, changes: Mapping[str, object]) -> dict[str, object]:
    """The changes, and what a new `algorithm.type` brings with it."""
    section = "algorithm."
    of_algorithm = {
        key.removeprefix(section): value for key, value in changes.items() if key.startswith(section)
    }
    try:
        complete = changes_by_type(settings.algorithm, of_algorithm)
    except ValidationError as error:
        raise ConfigError(
            f"algorithm.type = {changes['algorithm.type']!r}: {error.errors()[0]['msg']}"
        ) from error
    return dict(changes) | {f"{section}{key}": value for key, value in complete.items()}


def _check_num_steps(ledger: LedgerState, planned: int, wanted: int) -> None:
    if ledger.version >= planned:
        raise ConfigError(
            f"run.num_steps = {wanted}: the run has made its {planned} steps already, and its workers may have been "
            "stopped; start a new run from its weights"
        )
    if wanted <= ledger.version:
        raise ConfigError(
            f"run.num_steps = {wanted}: version {ledger.version} is made already; give a larger number"
        )


def refuse_other_keys(keys: Iterable[str], allowed: Iterable[str], why: str) -> None:
    """Raise ConfigError where one of `keys` is not allowed, with the list of those that are."""
    allowed = sorted(allowed)
    others = sorted(set(keys) - set(allowed))
    if others:
        raise ConfigError(f"{', '.join(others)} {why}; what can be set here: {', '.join(allowed)}")


def _value(settings: TrainerSettings, key: str) -> object:
    section, _, name = key.partition(".")
    model: Section = getattr(settings, _attributes[section])
    return model.model_dump(mode="json")[name]
