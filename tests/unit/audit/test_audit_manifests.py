"""The audit of a run whose manifest somebody replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from support.audited_run import check
from support.recorded_run import a_manifest_of, recorded_run, store_of

from consumers.archive import WeightsChoice, export_archive
from consumers.audit.auditor import audit_run
from rollog.cli.main import cli
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import runs_topic
from rollog.kernel.errors import ConfigError
from rollog.settings.settings import Settings, config_sha256
from schemas.codec import encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.simulated_run import SimulatedRun

    from consumers.audit.report import AuditReport
    from schemas import RunManifest


@pytest.fixture
def run() -> Iterator[SimulatedRun]:
    with recorded_run() as run:
        yield run


def forged(run: SimulatedRun) -> RunManifest:
    manifest = a_manifest_of(run)
    elsewhere = Settings.from_manifest(manifest.config_json).changed(weights={"uri": "memory://attacker"})
    text = elsewhere.to_manifest()
    return replace(
        manifest, config_json=text, config_sha256=config_sha256(text), weights_uri="memory://attacker"
    )


def write(run: SimulatedRun, manifest: RunManifest | None) -> None:
    topic = runs_topic(run.topics.prefix)
    run.hand.send(topic, 0, None if manifest is None else encode(manifest), key=run.topics.run.encode())


def forget(run: SimulatedRun) -> None:
    """Compaction has taken what stands in the register."""
    place = TopicPartition(runs_topic(run.topics.prefix), 0)
    with run.broker.consumer(client_id="test") as consumer, run.broker.admin() as admin:
        admin.delete_records(consumer.end_offsets([place]))


def audited(run: SimulatedRun) -> AuditReport:
    return audit_run(run.broker, run.topics, store_of(run), settles_within_seconds=0.0)


def test_the_manifest_of_a_run_is_compared_with_genesis(run: SimulatedRun) -> None:
    report = audited(run)
    assert report.is_clean
    assert check(report, "manifest").num_checked == 1


def test_a_second_manifest_is_named_with_its_place(run: SimulatedRun) -> None:
    write(run, forged(run))
    (finding,) = check(audited(run), "manifest").findings
    assert str(finding.place).startswith(f"{runs_topic(run.topics.prefix)}, partition 0, offset ")
    assert (finding.expected, finding.found) == (a_manifest_of(run).config_sha256, forged(run).config_sha256)
    assert "readers pass it over" in finding.message


def test_a_manifest_that_lies_about_its_digest_is_named(run: SimulatedRun) -> None:
    write(run, replace(forged(run), config_sha256=a_manifest_of(run).config_sha256))
    (finding,) = check(audited(run), "manifest").findings
    assert finding.found.startswith(forged(run).config_sha256)
    assert "it names" in finding.found


def test_an_archive_with_a_replaced_manifest_is_audited_by_genesis_and_refused_by_others(
    run: SimulatedRun, tmp_path: Path
) -> None:
    path = tmp_path / "run.zip"
    forget(run)
    write(run, forged(run))
    export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.ALL)
    result = CliRunner().invoke(cli, ["audit", "--archive", str(path)], standalone_mode=False)
    assert result.return_value == 1
    assert "OFF manifest:" in result.output
    assert "Settings and weights store are those of genesis" in result.output
    assert "audit: 1 thing(s) off" in result.output
    refused = CliRunner().invoke(
        cli, ["lineage", "--archive", str(path), "--step", "1"], standalone_mode=False
    )
    assert isinstance(refused.exception, ConfigError)


def test_what_cannot_be_compared_is_said(run: SimulatedRun) -> None:
    with run.broker.admin() as admin:
        admin.delete_records({TopicPartition(run.topics.steps, 0): 1})
    write(run, replace(forged(run), config_sha256="0" * 64))
    report = audited(run)
    (finding,) = check(report, "manifest").findings
    assert finding.expected == "0" * 64
    assert any("which whoever writes a manifest can make fit" in str(missing) for missing in report.missing)
    forget(run)
    assert any("only the configuration in genesis is known" in note for note in audited(run).notes)
