"""A Kafka Connect worker reads the samples of a run, configured as examples/connect has it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jgo.constants import MAVEN_CENTRAL_URL
from support.apicurio import apicurio
from support.builders import a_sample
from support.registered_schemas import registered_run
from support.small_registry import SmallRegistry
from support.waiting import wait_until

from schemas.codec import encode

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

example = Path(__file__).parents[2] / "examples" / "connect"
num_samples = 3


def jars(cache: Path, directory: Path) -> str:
    """The class path of a worker; skips where Maven or the artefacts are not to be had."""
    maven, java = shutil.which("mvn"), shutil.which("java")
    if maven is None or java is None:
        pytest.skip("no Maven or no Java on this machine")
    # The artefacts' own descriptions name further repositories, of which nothing is needed.
    mirror = f"<mirror><id>central</id><mirrorOf>*</mirrorOf><url>{MAVEN_CENTRAL_URL}</url></mirror>"
    (directory / "settings.xml").write_text(f"<settings><mirrors>{mirror}</mirrors></settings>")
    command = [maven, "-B", "-q", "-s", str(directory / "settings.xml"), "-f", str(example / "pom.xml")]
    command += [f"-Dmaven.repo.local={cache.resolve() / 'm2'}", "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={directory / 'lib'}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode != 0:
        pytest.skip(f"Kafka Connect cannot be fetched from Maven Central: {done.stdout[-500:]}")
    return os.pathsep.join(map(str, (directory / "lib").glob("*.jar")))


def changed(name: str, directory: Path, values: dict[str, str]) -> Path:
    """A file of the example with other values; each key must stand in it."""
    lines = (example / name).read_text(encoding="utf-8").splitlines()
    keys = {line.partition("=")[0] for line in lines if not line.startswith("#")}
    assert values.keys() <= keys
    found = [f"{key}={values[key]}" if (key := line.partition("=")[0]) in values else line for line in lines]
    (directory / name).write_text("\n".join(found) + "\n")
    return directory / name


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_worker_writes_every_sample_to_a_file(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path, cache_directory: Path
) -> None:
    class_path = jars(cache_directory, tmp_path)
    (tmp_path / "plugins").mkdir()
    with apicurio(cache_directory, tmp_path) as url:
        registry = SmallRegistry(url=url)  # only its address is used
        framed = registered_run(kafka_broker, registry, run_topics, timeout_seconds=30.0)
        with framed.producer(client_id="worker") as producer:
            for replica in range(num_samples):
                producer.send(run_topics.samples, 0, encode(a_sample(0, replica)))
            producer.flush(30)
        worker = changed(
            "worker.properties",
            tmp_path,
            {
                "bootstrap.servers": kafka_broker.address,
                "listeners": f"http://127.0.0.1:{a_free_port()}",
                "value.converter.apicurio.registry.url": url.replace("ccompat/v7", "registry/v2"),
            },
        )
        sink = changed("samples.properties", tmp_path, {"topics": run_topics.samples})
        lines = lines_of_a_worker(class_path, worker, sink, tmp_path)
    assert [line.partition(",")[0] for line in lines] == [
        f"Struct{{sample_id={a_sample(0, replica).sample_id}" for replica in range(num_samples)
    ]


def lines_of_a_worker(class_path: str, worker: Path, sink: Path, directory: Path) -> list[str]:
    """What a worker writes until there is a line for each sample."""
    program = ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(sink)]
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    log, output = directory / "connect.log", directory / "samples.txt"
    with log.open("wb") as told:
        process = subprocess.Popen(
            ["java", *options, "-cp", class_path, *program],
            cwd=directory,
            stdout=told,
            stderr=subprocess.STDOUT,
        )

    def lines() -> list[str]:
        assert process.poll() is None, log.read_text()[-2000:]
        found = output.read_text().splitlines() if output.exists() else []
        return found if len(found) >= num_samples else []

    try:
        return wait_until(lines, 180, f"{num_samples} samples; see {log}")
    finally:
        process.terminate()
        process.wait(60)
