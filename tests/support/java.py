"""Java programs in tests: the compiler of this machine, Kafka's own jars, and Apache Avro from Maven Central."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext

from rollog.kernel.broker.embedded_jars import resolve_jars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

avro = (
    "org.apache.avro:avro:1.12.2",
    "6522e2a146b859ad158bb024dcc3b0bc826680794a2523b0881dafcbd59ce2df",
)


_quiet = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)


def from_maven(cache: Path, coordinate: str, sha256: str) -> Path:
    """A jar from Maven Central, pinned; skips where it cannot be had."""
    group, artifact, version = coordinate.split(":")
    repositories = {**GlobalSettings.load().repositories, "central": MAVEN_CENTRAL_URL}
    context = MavenContext(repo_cache=cache.resolve() / "maven", remote_repos=repositories)
    try:
        path: Path = context.project(group, artifact).at_version(version).artifact().resolve()
    except Exception as error:  # noqa: BLE001 - jgo raises what its transport raises
        pytest.skip(f"{coordinate} cannot be fetched from Maven Central: {error}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == sha256, f"{path} is not the pinned file: sha256 {digest}"
    return path


def class_path(cache: Path, *beside: Path) -> str:
    """Kafka's jars (its client and Jackson among them), Avro, and what is named."""
    return os.pathsep.join(map(str, [*resolve_jars(cache), from_maven(cache, *avro), *beside]))


def compiled(source: Path, directory: Path, cache: Path) -> list[str]:
    """The command that runs the program of a source file; skips where there is no compiler."""
    compiler, java = shutil.which("javac"), shutil.which("java")
    if compiler is None or java is None:
        pytest.skip("no javac on this machine: the JRE of the embedded broker has no compiler")
    subprocess.run(
        [compiler, "-Xlint:all", "-Werror", "-cp", class_path(cache), "-d", str(directory), str(source)],
        check=True,
    )
    return [
        java,
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        *_quiet,
        "-cp",
        class_path(cache, directory),
        source.stem,
    ]


def run_java(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program that writes what it says to a file."""
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
