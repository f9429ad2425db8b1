"""A manifest counts when its configuration is the one in genesis."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.builders import a_genesis

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.errors import ConfigError
from rollog.run.creation import create_run
from rollog.run.joining import manifest_of_run
from rollog.run.manifest_check import manifest_to_audit
from rollog.settings.settings import Settings, config_sha256
from schemas import Close, Genesis, LedgerKind, LedgerRecord
from schemas.codec import encode

if TYPE_CHECKING:
    from schemas import RunManifest

settings = Settings().changed(run={"name": "first"}, weights={"uri": "file:///weights"})


def write(broker: MemoryBroker, topic: str, value: bytes, key: bytes | None = None) -> None:
    with broker.producer(client_id="writer") as producer:
        producer.send(topic, 0, value, key=key)
        producer.flush(10)


def forged(manifest: RunManifest, *, honest_digest: bool = True) -> RunManifest:
    elsewhere = settings.changed(weights={"uri": "s3://attacker/weights"}).to_manifest()
    digest = config_sha256(elsewhere) if honest_digest else manifest.config_sha256
    return replace(manifest, config_json=elsewhere, config_sha256=digest, weights_uri="s3://attacker/weights")


def register(broker: MemoryBroker, manifest: RunManifest) -> None:
    write(broker, "rollog.runs", encode(manifest), b"first")


def begin(broker: MemoryBroker, manifest: RunManifest) -> None:
    genesis = a_genesis()
    assert isinstance(genesis.body, Genesis)
    body = replace(genesis.body, manifest_json=manifest.config_json)
    write(broker, "rollog.first.steps", encode(replace(genesis, body=body)))


def a_close() -> LedgerRecord:
    body = Close(end_offsets=(0, 0), reason="over")
    return replace(a_genesis(), kind=LedgerKind.CLOSE, sequence=1, body=body)


def found(broker: MemoryBroker) -> RunManifest:
    return manifest_of_run(broker, settings.run, wait_seconds=0)


@pytest.mark.parametrize("honest_digest", [True, False])
def test_a_manifest_forged_after_genesis_is_ignored_and_named(
    honest_digest: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("rollog"), "propagate", True)
    broker = MemoryBroker()
    manifest = create_run(broker, settings)
    begin(broker, manifest)
    register(broker, forged(manifest, honest_digest=honest_digest))

    assert found(broker) == manifest
    named = {
        vars(each)["event_fields"]["config_sha256"]
        for each in caplog.records
        if "manifest ignored" in each.message
    }
    assert named == {forged(manifest).config_sha256}


def test_a_forged_manifest_that_replaced_the_runs_own_is_refused() -> None:
    broker = MemoryBroker()
    manifest = create_run(MemoryBroker(), settings)
    create_run(broker, settings.changed(weights={"uri": "s3://attacker/weights"}))
    begin(broker, manifest)

    with pytest.raises(ConfigError, match=r"rollog\.runs, offset \d+.*--archive") as caught:
        found(broker)

    assert manifest.config_sha256 in str(caught.value)
    assert forged(manifest).config_sha256 in str(caught.value)


def test_before_genesis_a_manifest_must_have_the_digest_it_names() -> None:
    broker = MemoryBroker()
    manifest = create_run(broker, settings)
    assert found(broker) == manifest

    register(broker, forged(manifest, honest_digest=False))

    with pytest.raises(ConfigError, match=r"offset \d+, names config_sha256 .* it was altered"):
        found(broker)


def test_the_audit_goes_on_with_the_configuration_of_genesis() -> None:
    broker = MemoryBroker()
    manifest = create_run(MemoryBroker(), settings)
    create_run(broker, settings.changed(weights={"uri": "s3://attacker/weights"}))
    begin(broker, manifest)

    taken = manifest_of_run(broker, settings.run, 0, manifest_to_audit)

    assert (taken.config_json, taken.config_sha256) == (manifest.config_json, manifest.config_sha256)
    assert taken.weights_uri == "file:///weights"


def test_the_audit_takes_the_runs_own_manifest_where_it_is_there() -> None:
    broker = MemoryBroker()
    manifest = create_run(broker, settings)
    begin(broker, manifest)
    register(broker, forged(manifest))

    assert manifest_of_run(broker, settings.run, 0, manifest_to_audit) == manifest


def test_a_ledger_whose_start_is_cut_off_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("rollog"), "propagate", True)
    broker = MemoryBroker()
    manifest = create_run(broker, settings)
    begin(broker, manifest)
    write(broker, "rollog.first.steps", encode(a_close()))
    with broker.admin() as admin:
        admin.delete_records({TopicPartition("rollog.first.steps", 0): 1})

    assert found(broker) == manifest
    assert any("start of the ledger is deleted" in each.message for each in caplog.records)
    caplog.clear()

    with broker.admin() as admin:
        admin.delete_records({TopicPartition("rollog.first.steps", 0): 2})
    assert found(broker) == manifest
    assert any("start of the ledger is deleted" in each.message for each in caplog.records)


def test_what_somebody_wrote_before_genesis_does_not_hide_it() -> None:
    broker = MemoryBroker()
    manifest = create_run(broker, settings)
    write(broker, "rollog.first.steps", b"no record of a ledger")
    begin(broker, manifest)
    register(broker, forged(manifest))

    assert found(broker) == manifest


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("named", [{"name": "other"}, {"name": "first", "prefix": "team"}])
def test_a_manifest_with_the_configuration_of_another_run_is_refused(
    named: dict[str, str], *, has_begun: bool
) -> None:
    broker = MemoryBroker()
    text = settings.changed(run=named).to_manifest()
    manifest = replace(create_run(broker, settings), config_json=text, config_sha256=config_sha256(text))
    register(broker, manifest)
    if has_begun:
        begin(broker, manifest)

    with pytest.raises(
        ConfigError, match=rf"run 'first' .* of run '{named['name']}' .* a copy or was forged"
    ):
        found(broker)


def test_the_configuration_of_genesis_under_another_prefix_leads_nowhere_else() -> None:
    broker = MemoryBroker()
    manifest = create_run(broker, settings)
    begin(broker, manifest)
    register(broker, replace(manifest, prefix="team"))

    assert found(broker) == manifest
    assert manifest_of_run(broker, settings.run, 0, manifest_to_audit) == manifest
