"""rollog: asynchronous reinforcement-learning post-training of language models on a durable log.

From Python: `rollog.up` does a run, `rollog.open_run` reads one. `__all__` is the public surface (docs/python.md);
everything else is private. The names come from `rollog.api`, which is imported when the first of them is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollog.api import (
        AuditReport,
        ConfigError,
        DataError,
        ExportedModel,
        RollogError,
        Run,
        RunNotFound,
        RunResult,
        Settings,
        Table,
        TrainedStep,
        open_run,
        up,
    )

__version__ = "0.2.0"

__all__ = [
    "AuditReport",
    "ConfigError",
    "DataError",
    "ExportedModel",
    "RollogError",
    "Run",
    "RunNotFound",
    "RunResult",
    "Settings",
    "Table",
    "TrainedStep",
    "__version__",
    "open_run",
    "up",
]

if not TYPE_CHECKING:  # a type checker sees the names above, and no others

    def __getattr__(name: str) -> object:
        """A public name. Raises AttributeError for any other."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("rollog.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
