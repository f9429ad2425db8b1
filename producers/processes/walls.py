"""What separates a process from the worker that starts it: its environment and limits. Standard library alone."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_inherited = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "TZ", "LD_LIBRARY_PATH"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWalls:
    """What one process may take.

    `environment` names the variables that it gets besides the usual ones, `max_memory_bytes` bounds its private memory.
    """

    environment: tuple[str, ...] = ()
    max_memory_bytes: int = 8 << 30

    def variables(self, ours: Mapping[str, str]) -> dict[str, str]:
        """The environment of the process, out of this one's. It imports from where this process imports."""
        named = _inherited | set(self.environment)
        kept = {name: value for name, value in ours.items() if name in named or name.startswith("LC_")}
        return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def limit_this_process(max_memory_bytes: int) -> None:
    """Bound the private memory of this process and of all that it starts, and leave no core file.

    RLIMIT_DATA and not RLIMIT_AS: address space that is reserved and never used, as torch and CUDA do, costs nothing.
    """
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    most = max_memory_bytes if hardest == resource.RLIM_INFINITY else min(max_memory_bytes, hardest)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
