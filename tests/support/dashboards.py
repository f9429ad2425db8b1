"""The dashboards and alert rules of infra/ as what they ask Prometheus for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

files = Path(__file__).parents[2] / "infra" / "helm" / "rollog" / "files"
dashboards = sorted((files / "dashboards").glob("*.json"))

idle_panels = frozenset(
    {
        ("generation", "Sessions of agents"),
        ("generation", "Calls of agents by kind"),
        ("operation", "Dead letters"),
        ("staleness", "Filters"),
    }
)
"""Panels that have no series until something happens: an agent, a dead letter, a group that is filtered."""


def queries(dashboard: Path) -> Iterator[tuple[str, str]]:
    """Title of the panel and expression of each query of a dashboard."""
    for panel in json.loads(dashboard.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def rules() -> list[dict[str, Any]]:
    """Every alert."""
    return [
        rule
        for group in yaml.safe_load((files / "rules.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
