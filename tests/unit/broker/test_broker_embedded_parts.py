"""Parts of the embedded broker that need no Java: jars, launcher, settings."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.embedded_jars import Jar, download, pinned
from rollog.kernel.broker.embedded_settings import server_properties
from rollog.kernel.errors import ConfigError

jar = Jar("org.example:thing:1.2", hashlib.sha256(b"right").hexdigest())


class Repository:
    """Stands for a Maven repository as jgo sees it: writes given bytes, or fails."""

    def __init__(self, directory: Path, content: bytes | None) -> None:
        self.directory = directory
        self.content = content
        self.remote_repos = {"mirror": "https://mirror.example"}

    def __getattr__(self, name: str) -> Any:
        """Every step of jgo's chain of calls leads on to the next."""
        return lambda *_: self

    def resolve(self) -> Path:
        if self.content is None:
            raise OSError("no route to host")
        path = self.directory / jar.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content)
        return path


def fetch(directory: Path, content: bytes | None) -> None:
    download(cast("Any", Repository(directory, content)), directory, jar)


def test_a_jar_with_the_pinned_digest_is_kept(tmp_path: Path) -> None:
    fetch(tmp_path, b"right")
    assert (tmp_path / "org/example/thing/1.2/thing-1.2.jar").read_bytes() == b"right"


def test_a_jar_with_another_digest_is_refused_and_removed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the pinned file"):
        fetch(tmp_path, b"wrong")
    assert not (tmp_path / jar.path).exists()


def test_a_repository_out_of_reach_is_named_with_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"org\.example:thing:1\.2.*mirror\.example.*no route.*existing broker"
    ):
        fetch(tmp_path, None)


def test_every_jar_is_pinned_once() -> None:
    assert len({jar.coordinate.rpartition(":")[0] for jar in pinned}) == len(pinned)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in pinned)


def launch(parent: int, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollog.kernel.broker.child", str(parent), *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )


def test_the_launcher_becomes_the_command() -> None:
    result = launch(os.getpid(), sys.executable, "-c", "import os; print(os.getppid())")
    assert result.stdout.strip() == str(os.getpid())


def test_the_launcher_starts_nothing_for_a_starter_that_is_gone() -> None:
    result = launch(2**22 + 1, sys.executable, "-c", "print('started')")
    assert (result.stdout, result.returncode) == ("", 1)
    assert "gone" in result.stderr


def test_settings_name_ports_and_directory() -> None:
    lines = server_properties(Path("/data/kafka"), 1111, 2222).splitlines()
    assert "log.dirs=/data/kafka" in lines
    assert "advertised.listeners=PLAINTEXT://127.0.0.1:1111" in lines
    assert "controller.quorum.voters=1@127.0.0.1:2222" in lines
    assert "auto.create.topics.enable=false" in lines


def test_no_broker_runs_on_a_directory_that_holds_none(tmp_path: Path) -> None:
    assert EmbeddedKafka.running(tmp_path) is None
    assert EmbeddedKafka.running(tmp_path / "missing") is None
    (tmp_path / "broker.lock").touch()
    (tmp_path / "broker.json").write_text('{"port": 1, "controller_port": 2, "pid": 3, "ready": true}')
    assert EmbeddedKafka.running(tmp_path) is None
    kafka = EmbeddedKafka(tmp_path, tmp_path)
    assert not kafka.is_running
    with pytest.raises(ValueError, match="not started"):
        _ = kafka.address
