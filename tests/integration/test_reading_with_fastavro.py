"""The example in docs/reference/schemas.md reads an archive and a topic without anything of rollog."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import a_topic, read_to_end

from rollog.kernel.broker.archive import ArchiveBroker

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka import KafkaBroker

root = Path(__file__).parents[2]
page = (root / "docs" / "reference" / "schemas.md").read_text(encoding="utf-8")
of_an_archive, of_a_topic = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
nothing_of_ours = """
import sys
assert not {"schemas", "rollog", "producers", "consumers", "trainer"} & set(sys.modules)
"""


def lines_of(code: str) -> list[str]:
    """What the code prints, run in the root of the repository, where it finds no module of ours."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code + nothing_of_ours],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_samples_of_an_archive_are_printed() -> None:
    lines = lines_of(of_an_archive)
    first = re.findall(r"```text\n(.*?)\n```", page)[0]
    assert len(lines) == 40
    assert lines[0] == first


@pytest.mark.broker
def test_the_samples_of_a_topic_are_printed(kafka_broker: KafkaBroker) -> None:
    archive = ArchiveBroker(root / "tests" / "data" / "recorded" / "run.zip")
    recorded = read_to_end(archive, "rollog.recorded.samples", (0, 1))
    topic = a_topic(kafka_broker)
    with kafka_broker.producer(client_id="writer") as producer:
        for record in recorded:
            producer.send(topic, 0, record.value)
        producer.flush(30)
    code = of_a_topic.replace("rollog.first.samples", topic)
    code = code.replace("localhost:9092", kafka_broker.address)
    known = of_an_archive.partition("with zipfile")[0]
    assert len(lines_of(known + code)) == len(recorded) > 0
