"""What docs/disaster-recovery.md promises: checkpoints and weights are lost, then everything but an archive."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
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
