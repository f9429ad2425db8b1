"""Run a command that dies with the process that started it: `python -m rollog.kernel.broker.child PARENT COMMAND...`.

The kernel is asked to kill this process when the thread that started it ends, then the command takes its place and
inherits the request. So the starting thread has to live as long as the command should (`broker/embedded.py`). PARENT is
the process id of the starter: should it have died before the request was made, nothing is started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_set_parent_death_signal = 1


def main(arguments: list[str]) -> None:
    """Become the command."""
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the starting process is gone")
    os.execv(command[0], command)  # noqa: S606 - the caller names the program by its full path


if __name__ == "__main__":
    main(sys.argv[1:])
