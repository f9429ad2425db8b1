"""`rollog` commands as processes, each as a user of a secured broker."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from support.secured_kafka import Listener

if TYPE_CHECKING:
    from pathlib import Path

    from support.secured_kafka import SecuredKafka

longest_seconds = 240.0


class Processes:
    """`rollog` as a user of the secured broker."""

    def __init__(self, kafka: SecuredKafka, home: Path, prefix: str, run: str) -> None:
        self._kafka = kafka
        self._home = home
        self._prefix = prefix
        self._run = run

    def start(self, user: str, *words: str) -> subprocess.Popen[str]:
        """One command, in a process of its own."""
        address = self._kafka.address_of(Listener.SCRAM_TLS)
        place = ("--run", self._run, "--set", f"run.prefix={self._prefix}", "--broker", address)
        return subprocess.Popen(
            [sys.executable, "-m", "rollog.cli.main", *words, *place, "--home", str(self._home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(user),
        )

    def call(self, user: str, *words: str) -> tuple[int, str]:
        """Exit status and what it says."""
        process = self.start(user, *words)
        try:
            said, _ = process.communicate(timeout=longest_seconds)
        finally:
            process.kill()
            process.wait()
        return process.returncode, said

    def _environment(self, user: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
        table = {
            f"ROLLOG_BROKER__SECURITY__{key.upper()}": str(value)
            for key, value in self._kafka.table(user).items()
        }
        return kept | table | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
