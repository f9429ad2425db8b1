"""A run by the command line: its processes, what they say, and the signals of a keyboard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

patience_seconds = 120.0


@contextmanager
def sigint_heeded() -> Iterator[None]:
    """As in a terminal: what is started in the background of a script inherits that Ctrl-C is to be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Terminal:
    """`rollog` in a terminal of its own, as far as signals go."""

    def __init__(self, directory: Path, cache_directory: Path) -> None:
        self.home = directory / "home"
        self._directory = directory
        self._mark = f"rollog-test-{uuid.uuid4().hex}"
        self._process: subprocess.Popen[bytes] | None = None
        (self.home / "cache").mkdir(parents=True)
        # Kafka's jars come from the shared cache, the demo's files do not.
        (self.home / "cache" / "maven").symlink_to(cache_directory.resolve() / "maven")

    def up(self, *words: str) -> None:
        self.start("up", "--plain", *words)

    def start(self, *words: str) -> None:
        """Start a command; what earlier ones said is forgotten."""
        with self._output.open("wb") as output, sigint_heeded():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollog.cli.main", *words, "--home", str(self.home)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=self._environment,
                start_new_session=True,
            )

    def press_ctrl_c(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGINT)

    def status(self, timeout_seconds: float = patience_seconds) -> int:
        """Exit status, waited for."""
        assert self._process is not None
        return self._process.wait(timeout_seconds)

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.told(), patience_seconds, f"{words!r} in:\n{self.told()}")

    def told(self) -> str:
        """Everything that `up` and its roles said."""
        logs = sorted(self.home.glob("runs/*/logs/*.log"))
        return "\n".join(path.read_text(errors="replace") for path in (self._output, *logs))

    def processes(self) -> list[str]:
        """Command lines of everything that was started, by `up` or by what it started, and still runs."""
        mark = self._mark.encode()
        return [command for path in Path("/proc").glob("[0-9]*") if (command := _command_of(path, mark))]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def _output(self) -> Path:
        return self._directory / "output"

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            # Reward processes get no other variables of ours.
            "LC_STARTED_BY": self._mark,
        }


def _command_of(process: Path, mark: bytes) -> str:
    """Command line of a process whose environment has the mark, else nothing. Zombies have none of either."""
    try:
        if mark not in (process / "environ").read_bytes():
            return ""
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
