"""Whether the state directory and the weights store can be written."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from rollog.kernel.addresses import public_address
from rollog.kernel.disk_room import no_room
from rollog.kernel.errors import ConfigError
from rollog.kernel.weights import WeightsStore
from rollog.run.finding import Finding

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.settings.settings import Settings

_least_free_bytes = 256 << 20


def state_directory(home: Path) -> list[Finding]:
    """A file is written where the state directory is, or would be made. Raises ConfigError."""
    place = home.resolve()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ConfigError(
            f"the state directory {home} cannot be written ({error.strerror or error}): choose another with --home or "
            "ROLLOG_HOME, or give this user the right to write there"
        ) from error
    full = no_room(place, least_free_bytes=_least_free_bytes)
    if full is not None:
        raise ConfigError(f"{full}, or choose another --home")
    return [Finding(what="state directory", found=f"{place} can be written")]


def weights_store(settings: Settings, home: Path) -> list[Finding]:
    """An object is written to the store and deleted. Raises ConfigError, WeightsError."""
    uri = settings.weights.uri or (home / "weights").resolve().as_uri()
    WeightsStore(uri).try_writing()
    return [Finding(what="weights store", found=f"{public_address(uri)} can be written")]
