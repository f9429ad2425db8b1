"""Agents that ask nothing: what is tested with them is how they are run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from producers.agents.given import AgentTask, PolicyAccess


def echoes(task: AgentTask, policy: PolicyAccess) -> str:
    del policy
    return str(task.fields["number"])


def hangs(task: AgentTask, policy: PolicyAccess) -> None:
    """Says who it is and what it started in another group, and waits for ever."""
    del policy
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    _write_whole(Path(task.fields["pids"]), f"{os.getpid()} {child.pid}")
    time.sleep(600)


def hangs_or_echoes(task: AgentTask, policy: PolicyAccess) -> str:
    """Waits for ever where it is given a file to name itself in."""
    if "pids" not in task.fields:
        return echoes(task, policy)
    _write_whole(Path(task.fields["pids"]), str(os.getpid()))
    time.sleep(600)
    return ""


def stops_its_parent_or_echoes(task: AgentTask, policy: PolicyAccess) -> str:
    """Where it is given a file to name itself in, it stops the process that forked it, and waits for ever."""
    if "pids" in task.fields:
        os.kill(os.getppid(), signal.SIGSTOP)
    return hangs_or_echoes(task, policy)


def _write_whole(path: Path, text: str) -> None:
    """The file is there once all of it is."""
    path.with_suffix(".part").write_text(text, encoding="ascii")
    path.with_suffix(".part").rename(path)
