"""A project of Docker Compose with a run in it, as the tests of infra/ bring it up and look at it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

run_seconds = 1500.0


class Composition:
    """Services of Compose as a project of its own, for a run of a few steps."""

    roles = frozenset({"folders", "topics", "dispatcher", "rollout", "trainer", "watch"})
    """What ends with the run."""

    def __init__(self, directory: Path, *files: Path, run: str, override: str, **variables: str) -> None:
        """`files` are Compose's, `override` the text of one more; `variables` are for all of them."""
        shorter = directory / "shorter.yml"
        shorter.write_text(override)
        self.project = f"rollog-test-{uuid.uuid4().hex[:8]}"
        chosen = [word for path in (*files, shorter) for word in ("-f", str(path))]
        self._command = ["docker", "compose", "-p", self.project, *chosen]
        self._environment = {**os.environ, "ROLLOG_RUN": run, **variables}
        self._run_name = run
        self._directory = directory

    def call(self, *words: str, timeout_seconds: float = 300) -> str:
        """Output of one `docker compose` command; AssertionError when it fails."""
        ended = self._run(*words, timeout_seconds=timeout_seconds)
        assert ended.returncode == 0, f"{words}: {ended.stderr}\n{self._newest_logs()}"
        return ended.stdout

    def up(self, *words: str) -> None:
        """Build and start; returns when the run exists, because the roles wait for that."""
        self.call("up", "--build", "-d", *words, timeout_seconds=run_seconds)

    def add(self, override: str) -> None:
        """One more file of Compose's, for what is brought up from now on."""
        path = self._directory / f"override-{len(self._command)}.yml"
        path.write_text(override)
        self._command += ["-f", str(path)]

    def version(self) -> int:
        """The newest version that the trainer's container says it has committed; 0 before the first."""
        shown = self.call("logs", "--no-color", "trainer")
        return max((int(found) for found in re.findall(r"step committed version=(\d+)", shown)), default=0)

    def inspected(self, service: str, *, with_ended: bool = False) -> dict[str, Any]:
        """What the engine knows of the service's first container."""
        container = self.call("ps", *(("-a",) if with_ended else ()), "-q", service).split()[0]
        (found,) = json.loads(docker("inspect", container))
        return dict(found)

    def fails_inside(self, service: str, *words: str) -> str:
        """What a command that must fail says inside a container that runs."""
        ended = self._run("exec", "-T", service, *words, timeout_seconds=120)
        assert ended.returncode != 0, f"{words} worked in {service}: {ended.stdout}"
        return ended.stdout + ended.stderr

    def containers(self) -> dict[str, list[tuple[str, int]]]:
        """State and exit status of every container, by service."""
        lines = self.call("ps", "-a", "--format", "json").splitlines()
        found: dict[str, list[tuple[str, int]]] = {}
        for line in lines:
            one = json.loads(line)
            found.setdefault(one["Service"], []).append((one["State"], one["ExitCode"]))
        return found

    def take_down(self) -> None:
        """What `down` does, and leaves no anonymous volume behind; the named ones stay."""
        self.call("rm", "--stop", "--force", "--volumes")

    def wait_for_step(self, version: int) -> None:
        """Wait until the trainer's container has committed that version or a later one."""

        def is_committed() -> bool:
            time.sleep(2)  # asking costs more than a training step
            return self.version() >= version

        wait_until(is_committed, run_seconds, f"step {version}")

    def kill_container(self, service: str) -> None:
        """SIGKILL for the first process of a container, as when its machine runs out of memory."""
        os.kill(self.inspected(service)["State"]["Pid"], signal.SIGKILL)

    def num_restarts(self, service: str) -> int:
        """How often Docker has brought the service's first container back."""
        return int(self.inspected(service, with_ended=True)["RestartCount"])

    def wait_until_over(self) -> None:
        """Wait until everything but Kafka has ended; fails as soon as something ended with an error."""
        try:
            wait_until(self._is_over, run_seconds, "every role to end")
        except AssertionError as error:
            error.add_note(f"{self.containers()}\n{self._newest_logs()}")
            raise

    def summary(self) -> dict[str, Any]:
        """summary.json out of the volume."""
        copy = self._directory / "summary.json"
        self.call("cp", f"watch:/var/lib/rollog/runs/{self._run_name}/summary.json", str(copy))
        found: dict[str, Any] = json.loads(copy.read_text())
        return found

    def _is_over(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._run("wait", "watch", timeout_seconds=5)
        ended = [
            state for name, states in self.containers().items() if name in self.roles for state in states
        ]
        failed = [state for state in ended if state[0] == "exited" and state[1] != 0]
        assert not failed, self._newest_logs()
        return all(state[0] == "exited" for state in ended)

    def _newest_logs(self) -> str:
        return self._run("logs", "--no-color", "--tail", "40", timeout_seconds=60).stdout

    def _run(self, *words: str, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env=self._environment,
        )


def docker(*words: str) -> str:
    """Output of one `docker` command; CalledProcessError when it fails."""
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout


def require_engine() -> None:
    """Without a container engine these tests are skipped, and fail where ROLLOG_REQUIRE_DOCKER is set."""
    if shutil.which("docker") is None:
        problem = "there is no docker command"
    else:
        asked = subprocess.run(["docker", "compose", "ls"], check=False, capture_output=True, text=True)
        if asked.returncode == 0:
            return
        problem = f"the container engine does not answer: {asked.stderr.strip()}"
    if os.environ.get("ROLLOG_REQUIRE_DOCKER"):
        pytest.fail(problem)
    pytest.skip(problem)
