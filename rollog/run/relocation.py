"""A state directory that was moved or copied: its runs are found where it is now.

A manifest names files by absolute addresses. Where its weights are `X/weights/RUN`, the state directory was X when the
run was made; where the one in use has `weights/RUN`, too, the run's files are taken from there. So a copy does not
write into the store of its original.

    manifest      weights.uri  file:///old/weights/first      model.path  /old/cache/demo/c-1/model
    --home /new   weights.uri  file:///new/weights/first      model.path  /new/cache/demo/c-1/model, if that exists
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollog.kernel.store_owner import path_of

if TYPE_CHECKING:
    from rollog.settings.settings import Settings

_paths = (("model", "path"), ("model", "tokenizer"), ("data", "train"), ("data", "held_out"))


def at_home(settings: Settings, home: Path) -> Settings:
    """The settings of a manifest with the places they have below `home` now."""
    own = (home / "weights" / settings.run_name).resolve()
    recorded = path_of(settings.weights.uri or "")
    if recorded is None or recorded == own or recorded.parts[-2:] != own.parts[-2:] or not own.is_dir():
        return settings
    former = recorded.parent.parent
    changes: dict[str, dict[str, Any]] = {"weights": {"uri": own.as_uri()}}
    for section, key in _paths:
        moved = _moved(getattr(getattr(settings, section), key), former, home.resolve())
        if moved is not None:
            changes.setdefault(section, {})[key] = moved
    return settings.changed(**changes)


def _moved(value: str | None, former: Path, home: Path) -> str | None:
    """Where a file of the former state directory is now; None for any other, and where it did not come along."""
    if value is None or not Path(value).is_relative_to(former):
        return None
    place = (home / Path(value).relative_to(former)).resolve()
    return str(place) if place.is_relative_to(home) and place.exists() else None
