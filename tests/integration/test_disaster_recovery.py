"""What docs/disaster-recovery.md promises: checkpoints and weights are lost, then everything but an archive."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient
from support.threaded_run import settings_file, small_settings

from consumers.ledger import read_ledger
from schemas import LedgerKind

if TYPE_CHECKING:
    from pathlib import Path

    from support.terminal import Terminal

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_run_is_made_again_from_the_log_and_then_from_an_archive(
    terminal: Terminal, tmp_path: Path, kafka_broker: KafkaBroker, run_topics: RunTopics
) -> None:
    name = run_topics.run
    on_kafka = ("--broker", kafka_broker.address)
    settings_file(tmp_path / "run.toml", small_settings(tmp_path, name, run={"num_steps": 2000}))
    terminal.up("--run", name, "--config", "run.toml", *on_kafka)
    terminal.wait_for("step 3/2000")
    terminal.press_ctrl_c()
    assert terminal.status() == 130

    weights = tmp_path / "weights"
    for file in weights.glob("v*"):
        if not file.name.startswith("v000000-"):
            file.unlink()
    shutil.rmtree(terminal.home / "runs" / name)
    last = read_ledger(kafka_broker, run_topics)[-1].record.version
    place = (name, "--set", f"run.prefix={run_topics.prefix}", *on_kafka)
    terminal.start("resume", *place, "--plain", "--set", f"run.num_steps={last + 2}")
    assert terminal.status() == 0, terminal.told()
    ledger = [entry.record for entry in read_ledger(kafka_broker, run_topics)]
    assert (ledger[-1].kind, ledger[-1].version) == (LedgerKind.CLOSE, last + 2)
    versions = sorted(file.name[:7] for file in weights.glob("v*"))
    assert versions == ["v000000", *(f"v{version:06d}" for version in (last, last + 1, last + 2))]

    check_capacity(terminal, tmp_path / "capacity.json", kafka_broker.address, run_topics, place)

    terminal.start("export", name, "run.zip", "--weights", "first", *place[1:])
    assert terminal.status() == 0, terminal.told()
    shutil.rmtree(weights)
    shutil.rmtree(terminal.home / "runs" / name)
    for command in ("audit", "replay"):
        terminal.start(command, "--archive", "run.zip")
        assert terminal.status() == 0, terminal.told()
    assert f"EQUAL: {last + 2} step(s) replayed" in terminal.told()
    terminal.start("export", "--archive", "run.zip", "--model", "model-0", "--version", "0")
    assert terminal.status() == 0, terminal.told()
    assert (tmp_path / "model-0" / "config.json").is_file()


def check_capacity(
    terminal: Terminal, path: Path, address: str, topics: RunTopics, place: tuple[str, ...]
) -> None:
    """What `rollog capacity` counts is what the broker's disk and the weights store hold, but for a few percent."""
    terminal.start("capacity", *place, "--json", str(path))
    assert terminal.status() == 0, terminal.told()
    counted = json.loads(path.read_text())["num_bytes"]
    client = KafkaAdminClient(bootstrap_servers=address)
    try:
        names = {topics.samples: "samples", topics.tasks: "tasks", topics.steps: "steps"}
        stored = dict.fromkeys(names.values(), 0)
        for broker in client.describe_log_dirs(list(names)):
            for directory in broker["log_dirs"]:
                for topic in directory["topics"]:
                    stored[names[topic["name"]]] += sum(
                        part["partition_size"] for part in topic["partitions"]
                    )
    finally:
        client.close()
    for part, num_bytes in stored.items():
        assert counted[part] == pytest.approx(num_bytes, rel=0.15), part
    weights = (path.parent / "weights").glob("v*")
    assert counted["weights files"] == sum(file.stat().st_size for file in weights)
