"""The embedded Apache Kafka as a process: start, stop, reuse, and what it refuses."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.broker_topics import a_topic, read_to_end, values
from support.waiting import wait_until

from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.embedded_jars import kept_classes
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.prepare import prepare
from rollog.kernel.broker.topics import RunTopics, check_topics, ensure_topics, run_topic_names, topic_specs
from rollog.kernel.errors import BrokerUnreachable, ConfigError, TopicMismatch
from rollog.settings.run import BrokerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.session_kafka import SessionKafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

starter = """
import sys, threading, time
from pathlib import Path
from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.embedded_jars import kept_classes

kafka = EmbeddedKafka(Path(sys.argv[1]), Path(sys.argv[2]))
thread = threading.Thread(target=kafka.start)
thread.start()
thread.join()
print(kafka.pid, kafka.address, flush=True)
time.sleep(600)
"""


@pytest.fixture
def home(embedded_kafka: SessionKafka, tmp_path: Path) -> Path:
    """A data directory; that the session's broker runs shows that one can be started here."""
    assert embedded_kafka.pid
    return tmp_path / "broker"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_data_and_address_outlive_the_broker(home: Path, cache_directory: Path) -> None:
    assert EmbeddedKafka.running(home) is None
    with EmbeddedKafka(home, cache_directory) as kafka:
        address, pid = kafka.address, kafka.pid
        assert EmbeddedKafka.running(home) == address
        broker = KafkaBroker(address)
        topic = a_topic(broker)
        with broker.producer(client_id="writer") as producer:
            producer.send(topic, 0, b"kept").offset(20)
        assert kafka.log_path.stat().st_size > 0
    assert not kafka.is_running
    assert EmbeddedKafka.running(home) is None
    assert not is_alive(pid)
    with EmbeddedKafka(home, cache_directory) as kafka:
        assert kafka.address == address
        assert values(read_to_end(KafkaBroker(kafka.address), topic)) == [b"kept"]


def test_a_data_directory_serves_one_broker_at_a_time(
    embedded_kafka: SessionKafka, cache_directory: Path
) -> None:
    data_directory = embedded_kafka.log_path.parent
    with pytest.raises(ConfigError, match=embedded_kafka.address):
        EmbeddedKafka(data_directory, cache_directory).start()
    assert EmbeddedKafka.running(data_directory) == embedded_kafka.address


def test_a_port_in_use_is_named(home: Path, cache_directory: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    kafka = EmbeddedKafka(home, cache_directory, port=port)
    with pytest.raises(ConfigError, match=f"port {port} .* in use"):
        kafka.start()
    assert EmbeddedKafka.running(home) is None
    with pytest.raises(ValueError, match="not running"):
        _ = kafka.pid


def test_the_broker_dies_with_a_killed_starter_but_not_with_the_thread_that_started_it(
    home: Path, cache_directory: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", starter, str(home), str(cache_directory)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        pid, address = process.stdout.readline().split()
        assert EmbeddedKafka.running(home) == address
        with KafkaBroker(address).admin() as admin:
            assert admin.list_topics() == []
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    wait_until(lambda: not is_alive(int(pid)), message="the broker is gone")
    wait_until(lambda: EmbeddedKafka.running(home) is None, message="the data directory is free")


def test_a_broker_that_cannot_start_says_where_to_look(home: Path, cache_directory: Path) -> None:
    with EmbeddedKafka(home, cache_directory):
        pass
    (home / "kafka" / "meta.properties").write_text("nonsense=1\n")
    with pytest.raises(BrokerUnreachable, match=r"broker\.log"):
        EmbeddedKafka(home, cache_directory).start()


def test_the_topics_of_a_run_are_created_and_checked(
    kafka_broker: KafkaBroker, run_topics: RunTopics
) -> None:
    specs = topic_specs(run_topics, BrokerConfig())
    with kafka_broker.admin() as admin:
        with pytest.raises(TopicMismatch, match=r"does not exist"):
            check_topics(admin, specs)
        assert set(ensure_topics(admin, specs)) >= set(run_topic_names(run_topics))
        assert ensure_topics(admin, specs) == []
        check_topics(admin, specs)
        other = topic_specs(run_topics, BrokerConfig(max_workers=99, max_record_bytes=32 << 20))
        with pytest.raises(TopicMismatch, match="99") as caught:
            check_topics(admin, other)
        assert "max.message.bytes" in str(caught.value)
        admin.delete_topics(run_topic_names(run_topics))


def test_kept_classes_are_used_and_damaged_ones_left_aside(home: Path, cache_directory: Path) -> None:
    cache = home.parent / "cache"
    cache.mkdir()
    (cache / "maven").symlink_to(cache_directory.resolve() / "maven")
    prepare(cache)
    kept = kept_classes(cache)
    written = kept.stat().st_mtime_ns
    assert {path.name for path in cache.iterdir()} == {"maven", kept.name}
    with EmbeddedKafka(home, cache) as kafka:
        assert f"-XX:AOTCache={kept}" in Path(f"/proc/{kafka.pid}/cmdline").read_text().split("\0")
    prepare(cache)
    assert kept.stat().st_mtime_ns == written
    kept.write_bytes(b"not what Java wrote")
    with EmbeddedKafka(home, cache) as kafka:
        assert kafka.is_running


def test_kafka_that_cannot_be_prepared_is_told_of(home: Path) -> None:
    home.mkdir()
    in_the_way = home / "cache"
    in_the_way.touch()
    command = [sys.executable, "-m", "rollog.kernel.broker.prepare"]
    process = subprocess.run(
        [*command, str(in_the_way / "below")], check=False, capture_output=True, text=True
    )
    assert process.returncode == 1
    assert str(in_the_way) in process.stderr
    assert "Traceback" not in process.stderr
    assert subprocess.run(command, check=False, capture_output=True).returncode == 2
