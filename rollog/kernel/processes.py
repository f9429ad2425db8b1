"""Child processes that die with their parent, own a process group and leave nothing behind.

For everybody who starts a process, `launcher_command(command)` is available: it wraps a command so that Linux
ends the process when its parent dies, however that happens. The wrapper is this module run as
`python -m rollog.kernel.processes PARENT_PID SIGNAL COMMAND...`: it asks the kernel for the signal
(PR_SET_PDEATHSIG), leaves if the parent is gone already, and then becomes the command (same pid).

The kernel ties that signal to the *thread* that started the child: start children from a thread that lives as
long as they should, in practice the main thread. Elsewhere than on Linux the wrapper only runs the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_pr_set_pdeathsig = 1
_exit_status_orphaned = 143
_exit_status_not_startable = 127


def launcher_command(
    command: Sequence[str], *, on_parent_death: signal.Signals = signal.SIGKILL, parent_pid: int | None = None
) -> list[str]:
    """`command`, wrapped so that its process gets `on_parent_death` when this one dies."""
    pid = os.getpid() if parent_pid is None else parent_pid
    return [sys.executable, "-m", "rollog.kernel.processes", str(pid), str(int(on_parent_death)), *command]


def exists(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass
class ChildProcess:
    """One running child in a process group of its own; its output goes to `log_path` (appended)."""

    command: tuple[str, ...]
    log_path: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @classmethod
    def start(
        cls, command: Sequence[str], *, log_path: Path, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Start `command`; raises OSError when the log file cannot be written."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603  # the command is the caller's own
                launcher_command(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                process_group=0,
            )
        return cls(tuple(command), log_path, process)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self.process.pid

    def poll(self) -> int | None:
        """Exit status once the process has ended (negative: by that signal), else None.

        What the process left in its group is killed before its pid is given back to the system.
        """
        if self.process.returncode is None and _has_ended(self.pid):
            self._signal_group(signal.SIGKILL)
            self.process.wait()
        return self.process.returncode

    def terminate(self) -> None:
        """Ask the process (not its group) to end gracefully."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> int:
        """End the whole group at once and return the exit status."""
        if self.poll() is None:
            self._signal_group(signal.SIGKILL)
            self.process.wait()
        return self.process.returncode

    def last_lines(self, count: int = 15) -> list[str]:
        """The newest lines of its output."""
        try:
            with self.log_path.open(encoding="utf-8", errors="replace") as lines:
                return [line.rstrip("\n") for line in deque(lines, maxlen=count)]
        except FileNotFoundError:
            return []

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, without giving its pid back."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _die_with_parent(parent_pid: int, number: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_pr_set_pdeathsig, number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    # The parent may have died between fork and prctl; the signal would then never come.
    if os.getppid() != parent_pid:
        sys.exit(_exit_status_orphaned)


def main(arguments: Sequence[str]) -> None:
    """Bind this process to its parent and become the given command."""
    parent_pid, number, *command = arguments
    _die_with_parent(int(parent_pid), int(number))
    try:
        os.execvp(command[0], command)  # noqa: S606  # replaces this very process, no shell involved
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.exit(_exit_status_not_startable)


if __name__ == "__main__":
    main(sys.argv[1:])
