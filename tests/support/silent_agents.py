"""Agents that ask nothing: what is tested with them is how they are run."""

from __future__ import annotations

import os
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
    written = Path(task.fields["pids"])
    written.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}", encoding="ascii")
    written.with_suffix(".part").rename(written)
    time.sleep(600)


def hangs_or_echoes(task: AgentTask, policy: PolicyAccess) -> str:
    """Waits for ever where it is given a file to name itself in."""
    if "pids" not in task.fields:
        return echoes(task, policy)
    Path(task.fields["pids"]).write_text(str(os.getpid()), encoding="ascii")
    time.sleep(600)
    return ""
