"""Apache Kafka in containers: each supported line keeps every promise of the broker port and carries a run.

The images are those that Apache publishes. One that is neither here nor can be pulled is named: that skips the test,
or fails it with ROLLOG_REQUIRE_DOCKER, unless ROLLOG_KAFKA_IMAGES names the lines that this machine is to have.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest
from support.broker_suite import passes_contract_suite, short_run_replays
from support.kafka_lines import Line, lines
from support.waiting import wait_until
from testcontainers.core.container import DockerContainer

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.limits import dead_letter_margin_bytes
from rollog.kernel.broker.preflight import Address, answers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

start_seconds = 120.0
is_required = bool(os.environ.get("ROLLOG_REQUIRE_DOCKER"))


def is_expected(line: Line) -> bool:
    """Whether this machine must have the image."""
    named = os.environ.get("ROLLOG_KAFKA_IMAGES")
    return is_required and (named is None or line.name in named.split(","))


def missing(line: Line, why: str) -> NoReturn:
    """Fail where the machine must have it, else skip; both say what is missing."""
    if is_expected(line):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module", params=lines, ids=lambda line: line.name)
def line(request: pytest.FixtureRequest) -> Line:
    chosen: Line = request.param
    return chosen


@pytest.fixture(scope="module")
def image(line: Line) -> str:
    """The image of a line, pulled if it is not here."""
    name = f"apache/kafka:{line.version}"
    if shutil.which("docker") is None:
        missing(line, "no `docker` command: install a container engine")
    engine = docker("version")
    if engine.returncode != 0:
        missing(line, f"no container engine answers: {engine.stderr.strip()}")
    if docker("image", "inspect", name).returncode != 0:
        pulled = docker("pull", name)
        if pulled.returncode != 0:
            missing(line, f"image {name} is not here and cannot be pulled: {pulled.stderr.strip()}")
    return name


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def address(image: str) -> Iterator[str]:
    """A broker in a container, on a port of this machine alone."""
    port = free_port()
    container = DockerContainer(image)
    # `with_bind_ports` knows no address and would open the port to everybody.
    cast("dict[str, Any]", container.ports)["9092/tcp"] = ("127.0.0.1", port)
    for name, value in settings(port).items():
        container = container.with_env(name, value)
    with container:
        try:
            wait_until(lambda: answers(Address("127.0.0.1", port), 2.0), start_seconds, image)
        except AssertionError as error:
            out, err = container.get_logs()
            raise AssertionError(f"{error}\n{(out + err).decode(errors='replace')[-4000:]}") from error
        yield f"127.0.0.1:{port}"


def settings(port: int) -> dict[str, str]:
    """One node in the image's own form: names in capitals, dots as underscores."""
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        # The broker calls itself to write the markers of transactions; the port of the machine it does not see.
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,INTERNAL://localhost:19092,CONTROLLER://localhost:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port},INTERNAL://localhost:19092",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "INTERNAL",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS": "1000",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_MESSAGE_MAX_BYTES": str((64 << 20) + dead_letter_margin_bytes),
        "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_keeps_every_promise_of_the_broker_port(address: str) -> None:
    passes_contract_suite(address)


def test_a_run_is_trained_audited_and_trained_again_to_the_same_bytes(
    address: str, line: Line, tmp_path: Path
) -> None:
    short_run_replays(KafkaBroker(address), tmp_path, f"image-{line.name.replace('.', '-')}")
