"""A policy of topic creation, compiled from tests/data/create_topic_policy for a broker of a test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_source = Path(__file__).resolve().parents[1] / "data" / "create_topic_policy" / "TopicPolicy.java"


def compiled_policy(jars: Sequence[Path], directory: Path) -> Path:
    """The directory with the class. Skips the test, saying so, where there is no Java compiler."""
    compiler = shutil.which("javac") or next(map(str, Path("/usr/lib/jvm").glob("*/bin/javac")), None)
    if compiler is None:
        pytest.skip(
            "a policy of topic creation is a Java class: install a JDK, such as openjdk-17-jdk-headless"
        )
    subprocess.run(
        [compiler, "--release", "11", "-cp", ":".join(map(str, jars)), "-d", str(directory), str(_source)],
        check=True,
        capture_output=True,
    )
    return directory


def policy_settings(limit_bytes: int) -> dict[str, str]:
    """Broker settings: `max.message.bytes` of a new topic is at most this; with 0 nobody may create any."""
    return {
        "create.topic.policy.class.name": "TopicPolicy",
        "topic.policy.max.message.bytes": str(limit_bytes),
    }
