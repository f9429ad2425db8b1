"""`--json FILE`: what a command found, for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the figures to this file.",
)


def write_json(path: Path, contents: Mapping[str, Any]) -> None:
    """Write `contents` to the file that `--json` names. Raises ConfigError when that is not possible."""
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415  # help needs it not

    try:
        path.write_text(json.dumps(contents, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path} cannot be written ({error.strerror}); name another file") from error
