"""A run by the command line, stopped, gone on with under changed settings, replayed, and asked what if."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import settings_file, small_settings

from consumers.ledger import read_ledger
from schemas import Amend, LedgerKind, Step

if TYPE_CHECKING:
    from pathlib import Path

    from support.terminal import Terminal

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_stopped_run_goes_on_with_other_settings_and_every_step_can_be_replayed(
    terminal: Terminal, tmp_path: Path, kafka_broker: KafkaBroker, run_topics: RunTopics
) -> None:
    name = run_topics.run
    on_kafka = ("--broker", kafka_broker.address)
    settings_file(tmp_path / "run.toml", small_settings(tmp_path, name, run={"num_steps": 2000}))
    terminal.up("--run", name, "--config", "run.toml", *on_kafka)
    terminal.wait_for("step 3/2000")
    terminal.press_ctrl_c()
    assert terminal.status() == 130

    place = (name, "--set", f"run.prefix={run_topics.prefix}", *on_kafka)
    made = json.loads((terminal.home / "runs" / name / "summary.json").read_text())["steps"]
    changed = ("--set", f"run.num_steps={made + 2}", "--set", "optimizer.learning_rate=0.01")
    terminal.start("resume", *place, "--plain", *changed)
    assert terminal.status() == 0, terminal.told()
    assert f"step {made + 2}/{made + 2}" in terminal.told()

    ledger = [entry.record for entry in read_ledger(kafka_broker, run_topics)]
    amendments = [record.body for record in ledger if isinstance(record.body, Amend)]
    assert [json.loads(body.changes_json) for body in amendments] == [
        {"optimizer.learning_rate": 0.01, "run.num_steps": made + 2}
    ]
    steps = {record.version: record.body for record in ledger if isinstance(record.body, Step)}
    assert [steps[version].revision for version in sorted(steps)] == [0] * made + [1, 1]
    assert ledger[-1].kind is LedgerKind.CLOSE

    terminal.start("replay", *place, "--json", "replay.json")
    assert terminal.status() == 0, terminal.told()
    assert f"EQUAL: {made + 2} step(s) replayed" in terminal.told()
    report = json.loads((tmp_path / "replay.json").read_text())
    assert report["equal"] is True
    assert [step["weights_sha256"] for step in report["steps"]] == [
        steps[version].weights_sha256 for version in sorted(steps)
    ]

    terminal.start(
        "replay", *place, "--from", str(made), "--set", "algorithm.clip_high=0.01", "--into", "tight"
    )
    assert terminal.status() == 0, terminal.told()
    assert "a counterfactual, no reproduction" in terminal.told()
    summary = json.loads((terminal.home / "counterfactuals" / "tight" / "summary.json").read_text())
    assert summary["kind"] == "counterfactual"
    assert [step["version"] for step in summary["steps"]] == [made + 1, made + 2]
