"""Record of the `<prefix>.runs` topic: one manifest per run (compacted by run)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """What a run is. `config_json` is the resolved configuration without secrets."""

    run: str
    prefix: str
    seed: int
    config_json: str
    config_sha256: str
    weights_uri: str
    rollog_version: str
    created_unix_seconds: float
    partitions: dict[str, int] = field(default_factory=dict)
