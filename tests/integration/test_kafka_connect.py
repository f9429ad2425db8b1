"""A Kafka Connect worker reads the samples of a run, as examples/connect has it: into a file, and into Iceberg."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from jgo.constants import MAVEN_CENTRAL_URL
from support.apicurio import apicurio
from support.builders import a_sample
from support.registered_schemas import registered_run
from support.small_registry import SmallRegistry
from support.waiting import wait_until

from rollog.kernel.broker.ports import TopicSpec
from schemas.codec import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import Sample

    Until = Callable[[Callable[[], Any], str], Any]

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

example = Path(__file__).parents[2] / "examples" / "connect"


def jars(pom: Path, cache: Path, directory: Path) -> list[Path]:
    """What a pom.xml of the example names, in a folder; skips where Maven or the artefacts are not to be had."""
    maven, java = shutil.which("mvn"), shutil.which("java")
    if maven is None or java is None:
        pytest.skip("no Maven or no Java on this machine")
    # The artefacts' own descriptions name further repositories, of which nothing is needed.
    mirror = f"<mirror><id>central</id><mirrorOf>*</mirrorOf><url>{MAVEN_CENTRAL_URL}</url></mirror>"
    directory.mkdir(parents=True)
    (directory / "settings.xml").write_text(f"<settings><mirrors>{mirror}</mirrors></settings>")
    command = [maven, "-B", "-q", "-s", str(directory / "settings.xml"), "-f", str(pom)]
    command += [f"-Dmaven.repo.local={cache.resolve() / 'm2'}", "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, "-DincludeScope=runtime", f"-DoutputDirectory={directory}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode != 0:
        pytest.skip(f"Kafka Connect cannot be fetched from Maven Central: {done.stdout[-500:]}")
    return list(directory.glob("*.jar"))


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


@pytest.fixture
def samples() -> list[Sample]:
    """What stands on the topic; the last one needs a newer release of the schema than the others."""
    older = [a_sample(0, replica) for replica in range(2)]
    return [*older, a_sample(0, 2, reward=None, awaits_reward=True)]


@pytest.fixture
def worker(
    kafka_broker: KafkaBroker,
    run_topics: RunTopics,
    samples: list[Sample],
    tmp_path: Path,
    cache_directory: Path,
) -> Iterator[Path]:
    """The settings of a worker beside a broker with these samples and the registry they were written with."""
    (tmp_path / "plugins").mkdir()
    with apicurio(cache_directory, tmp_path) as url:
        registry = SmallRegistry(url=url)  # only its address is used
        framed = registered_run(kafka_broker, registry, run_topics, timeout_seconds=30.0)
        with framed.producer(client_id="worker") as producer:
            for sample in samples:
                producer.send(run_topics.samples, 0, encode(sample))
            producer.flush(30)
        values = {
            "bootstrap.servers": kafka_broker.address,
            "listeners": f"http://127.0.0.1:{a_free_port()}",
            "value.converter.apicurio.registry.url": url.replace("ccompat/v7", "registry/v2"),
        }
        yield changed("worker.properties", tmp_path, values)


def test_a_worker_writes_every_sample_to_a_file(
    worker: Path, samples: list[Sample], run_topics: RunTopics, tmp_path: Path, cache_directory: Path
) -> None:
    class_path = jars(example / "pom.xml", cache_directory, tmp_path / "lib")
    sink = changed("samples.properties", tmp_path, {"topics": run_topics.samples})
    output = tmp_path / "samples.txt"

    def lines() -> list[str]:
        found = output.read_text().splitlines() if output.exists() else []
        return found if len(found) >= len(samples) else []

    with a_worker(class_path, worker, sink, tmp_path) as until:
        found = until(lines, f"{len(samples)} samples")
    assert [line.partition(",")[0] for line in found] == [
        f"Struct{{sample_id={sample.sample_id}" for sample in samples
    ]


def test_a_worker_writes_every_sample_to_an_iceberg_table_of_parquet_files(  # noqa: PLR0917 - fixtures
    worker: Path,
    samples: list[Sample],
    kafka_broker: KafkaBroker,
    run_topics: RunTopics,
    tmp_path: Path,
    cache_directory: Path,
) -> None:
    class_path = jars(example / "pom.xml", cache_directory, tmp_path / "lib")
    jars(example / "iceberg" / "pom.xml", cache_directory, tmp_path / "plugins" / "iceberg")
    control = f"{run_topics.prefix}.{run_topics.run}.control-iceberg"
    with kafka_broker.admin() as admin:
        admin.create_topics([TopicSpec(name=control, num_partitions=1)])
    values = {
        "topics": run_topics.samples,
        "iceberg.control.topic": control,
        "iceberg.control.commit.interval-ms": "1000",
    }
    sink = changed("iceberg.properties", tmp_path, values)
    table = tmp_path / "warehouse" / "rollog" / "samples"
    with a_worker(class_path, worker, sink, tmp_path) as until:
        until(lambda: num_committed(table) >= len(samples), f"{len(samples)} rows")
    assert num_committed(table) == len(samples)
    assert rows(table) == sorted(
        (
            sample.sample_id,
            sample.reward,
            sample.token_ids.tobytes(),
            sample.segments[0].weights_digest,
            sample.awaits_reward or None,
        )
        for sample in samples
    )


def num_committed(table: Path) -> int:
    """Rows of the table's current snapshot, as its metadata has it."""
    hint = table / "metadata" / "version-hint.text"
    if not hint.exists():
        return 0
    metadata = json.loads((table / "metadata" / f"v{hint.read_text().strip()}.metadata.json").read_text())
    current = metadata.get("current-snapshot-id")
    found = [each["summary"] for each in metadata["snapshots"] if each["snapshot-id"] == current]
    return int(found[0]["total-records"]) if found else 0


def rows(table: Path) -> list[tuple[Any, ...]]:
    """What any reader of Parquet finds."""
    with duckdb.connect() as connection:
        relation = connection.read_parquet(str(table / "data" / "**" / "*.parquet"), union_by_name=True)
        columns = "sample_id, reward, token_ids, segments[1].weights_digest, awaits_reward"
        return relation.project(columns).order("sample_id").fetchall()


@contextmanager
def a_worker(class_path: list[Path], worker: Path, sink: Path, directory: Path) -> Iterator[Until]:
    """A standalone worker for as long as the block lasts; gives what waits for something of its making."""
    program = ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(sink)]
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    log = directory / "connect.log"
    with log.open("wb") as told:
        process = subprocess.Popen(
            ["java", *options, "-cp", os.pathsep.join(map(str, class_path)), *program],
            cwd=directory,
            stdout=told,
            stderr=subprocess.STDOUT,
        )

    def until(made: Callable[[], Any], what: str) -> Any:
        def looked() -> Any:
            assert process.poll() is None, log.read_text()[-2000:]
            assert "Task is being killed" not in (written := log.read_text()), written[-4000:]
            return made()

        return wait_until(looked, 600, f"{what}; see {log}")

    try:
        yield until
    finally:
        process.terminate()
        process.wait(60)
