"""What an audit needs to know of a run's settings, from the manifest in its genesis record."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Settings that the checks depend on; None for what the ledger does not tell, which then is not checked."""

    seed: int | None = None
    groups_per_batch: int | None = None
    group_size: int | None = None
    redundant_replicas: int | None = None
    redundant_groups: int | None = None
    temperature: float | None = None
    has_late_rewards: bool = False
    keeps_turns: bool = False
    other_writers: frozenset[str] = frozenset()

    @property
    def num_replicas(self) -> int | None:
        """Replicas of a group, the redundant ones included."""
        if self.group_size is None or self.redundant_replicas is None:
            return None
        return self.group_size + self.redundant_replicas


_keys = {
    "seed": ("run", "seed"),
    "groups_per_batch": ("groups", "groups_per_batch"),
    "group_size": ("groups", "group_size"),
    "redundant_replicas": ("groups", "redundant_replicas"),
    "redundant_groups": ("groups", "redundant_groups"),
    "temperature": ("sampling", "temperature"),
    "has_late_rewards": ("reward", "late"),
    "keeps_turns": ("dispatch", "durable_turns"),
}


def config_of(settings_json: str, before: AuditConfig | None = None) -> AuditConfig:
    """The settings of a manifest, or those of an amendment on top of `before`, as far as the text holds any.

    A setting may stand in its section, `{"groups": {"group_size": 4}}`, or under its dotted key.
    """
    try:
        settings = json.loads(settings_json)
    except ValueError:
        settings = {}
    found = {name: _number(settings, *path) for name, path in _keys.items()}
    known = before or AuditConfig()
    named = settings.get("groups") if isinstance(settings, dict) else None
    writers = named.get("other_writers") if isinstance(named, dict) else None
    if isinstance(writers, list):
        known = replace(known, other_writers=frozenset(map(str, writers)))
    return replace(known, **{name: value for name, value in found.items() if value is not None})


def _number(settings: Any, section: str, key: str) -> Any:
    if not isinstance(settings, dict):
        return None
    keys = settings.get(section)
    value = keys.get(key) if isinstance(keys, dict) else settings.get(f"{section}.{key}")
    return value if isinstance(value, int | float) else None
