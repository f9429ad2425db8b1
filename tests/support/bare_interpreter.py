"""Another interpreter, for what has to run under one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def bare_interpreter(directory: Path) -> Path:
    """One that is as bare as another installation: without this one's packages."""
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n', encoding="utf-8")  # type: ignore[attr-defined]
    python.chmod(0o755)
    return python
