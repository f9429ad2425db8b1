"""The register of runs."""

from __future__ import annotations

import pytest

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.errors import RunExists, RunNotFound
from rollog.kernel.runs import find_run, read_runs, register_run
from schemas import RunManifest
from schemas.codec import encode


def a_broker() -> MemoryBroker:
    broker = MemoryBroker()
    with broker.admin() as admin:
        admin.create_topics([TopicSpec(name="rollog.runs", num_partitions=1)])
    return broker


def a_manifest(run: str = "first", *, seed: int = 0, prefix: str = "rollog") -> RunManifest:
    return RunManifest(
        run=run,
        prefix=prefix,
        seed=seed,
        config_json="{}",
        config_sha256="0" * 64,
        weights_uri="file:///weights",
        rollog_version="0.1.0",
        created_unix_seconds=1.5,
    )


def test_a_registered_run_is_found() -> None:
    broker = a_broker()

    register_run(broker, a_manifest("first", seed=7))

    assert find_run(broker, "rollog", "first") == a_manifest("first", seed=7)
    assert list(read_runs(broker, "rollog")) == ["first"]


def test_a_name_is_taken_while_its_run_is_registered() -> None:
    broker = a_broker()
    register_run(broker, a_manifest(seed=1))

    with pytest.raises(RunExists, match=r"'first' exists already.*--run.*`rollog runs delete first`"):
        register_run(broker, a_manifest(seed=2))

    assert find_run(broker, "rollog", "first").seed == 1


def test_a_missing_run_names_those_that_exist() -> None:
    broker = a_broker()
    register_run(broker, a_manifest("first"))

    with pytest.raises(RunNotFound, match=r"no run 'second'.*runs there: first"):
        find_run(broker, "rollog", "second")


def test_without_a_register_there_are_no_runs() -> None:
    assert read_runs(MemoryBroker(), "rollog") == {}


def test_a_run_that_is_created_while_somebody_waits_is_found() -> None:
    broker, now = a_broker(), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 1 and not read_runs(broker, "rollog"):
            register_run(broker, a_manifest())

    found = find_run(broker, "rollog", "first", wait_seconds=5, clock=lambda: now[0], sleep=sleep)

    assert found == a_manifest()
    assert now[0] < 5


def test_an_unreadable_manifest_hides_no_other() -> None:
    broker = a_broker()
    with broker.producer(client_id="vandal") as producer:
        producer.send("rollog.runs", 0, b"garbage", key=b"broken")
        producer.flush(10)

    register_run(broker, a_manifest())

    assert list(read_runs(broker, "rollog")) == ["first"]


def test_a_manifest_of_another_prefix_is_no_run_here() -> None:
    broker = a_broker()
    register_run(broker, a_manifest())
    with broker.producer(client_id="vandal") as producer:
        for run in ("first", "second"):
            producer.send("rollog.runs", 0, encode(a_manifest(run, prefix="team")), key=run.encode())
        producer.flush(10)

    assert read_runs(broker, "rollog") == {"first": a_manifest()}
