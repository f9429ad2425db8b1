"""A run that trains adapters in bfloat16: followed by its worker, audited, replayed, verified, joined, exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file
from support.patched_versions import found_at
from support.recorded_steps import recording_of, replayed
from support.small_training import notices
from support.threaded_run import small_settings, whole_run
from transformers import AutoModelForCausalLM

from consumers.archive import WeightsChoice, export_archive
from consumers.audit.auditor import audit_run
from consumers.verification.selection import Selection
from rollog.kernel.archived_weights import archived_weights
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.versions.adapter import matrix_names
from rollog.kernel.versions.files import adapter_at, read_manifest
from rollog.kernel.weights import WeightsStore
from rollog.run.model_export import export_model
from rollog.run.recorded_run import RecordedRun
from rollog.run.role_settings import trainer_settings
from rollog.run.stored_weights import StoredState, check_weights, list_weights
from rollog.run.verifying import VerifyRequest, verify_recorded
from rollog.run.weights_pruning import prune_weights
from trainer.recorded.prefill import PolicyPrefill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.threaded_run import WholeRun

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.engine]


@pytest.fixture
def ended(kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path) -> Iterator[WholeRun]:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 5},
        model={"dtype": "bfloat16"},
        optimizer={"learning_rate": 1e-3},
        trainer={"lora_rank": 4, "checkpoint_every_steps": 2},
        rollout={"engine": "transformers", "capacity": 8, "first_load_tolerance": 0.02},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        run.to_its_end()
        yield run


def recorded_run(ended: WholeRun) -> RecordedRun:
    return RecordedRun(
        broker=ended.broker,
        topics=ended.topics,
        store=WeightsStore(ended.manifest.weights_uri),
        settings=ended.settings,
        manifest=ended.manifest,
        is_archive=False,
    )


def test_a_run_of_adapters_is_whole_for_everyone_who_reads_it(ended: WholeRun, tmp_path: Path) -> None:
    store, published = WeightsStore(ended.manifest.weights_uri), notices(ended.broker, ended.topics)
    assert [notice.base and notice.base.version for notice in published] == [None, *[0] * 5]
    assert max(notice.stored_bytes or 0 for notice in published[1:]) < (published[0].stored_bytes or 0) / 2
    report = ended.audited()
    assert not any(check.num_unchecked for check in report.checks)

    model = found_at(store.fetch(published[0], tmp_path / "first"))
    for notice in published[1:]:
        joined = store.fetch(notice, tmp_path / f"joiner-{notice.version}")
        assert read_manifest(joined)[0].digest == notice.sha256
        adapter = adapter_at(joined)
        assert adapter is not None
        tensors = found_at(joined)
        changed = {name for name, tensor in tensors.items() if not torch.equal(tensor, model[name])}
        assert changed == adapter.tensor_names

    recording = recording_of(
        ended.broker, trainer_settings(ended.settings, ended.manifest, ended.home), tmp_path / "downloads"
    )
    for begin, checkpoint in ((0, None), (4, "step-000004")):
        used, steps = replayed(recording, begin, 5)
        assert used == checkpoint
        assert [step.weights_sha256 for step in steps] == [each.sha256 for each in published[begin + 1 :]]
        assert not any(step.differing for step in steps)

    scorer = PolicyPrefill(
        recording.settings.model_path,
        dtype="bfloat16",
        temperature=ended.settings.sampling.temperature,
        micro_batch_tokens=4096,
        device="cpu",
    )
    settings = trainer_settings(ended.settings, ended.manifest, ended.home)
    verified = verify_recorded(
        recorded_run(ended), settings, scorer, VerifyRequest(selection=Selection()), tmp_path / "verified"
    )
    assert verified.report.is_clean

    export_archive(ended.broker, ended.topics, store, tmp_path / "run.zip", weights=WeightsChoice.ALL)
    archive = ArchiveBroker(tmp_path / "run.zip")
    assert audit_run(archive, ended.topics, archived_weights(archive.file)).is_clean


def test_a_kept_version_is_exported_with_its_adapter_merged(ended: WholeRun, tmp_path: Path) -> None:
    run = recorded_run(ended)
    published = notices(ended.broker, ended.topics)[5]
    list(prune_weights(run, ended.home, keep_newest=1, sleep=lambda _: None))
    here = [each.version for each in list_weights(run) if each.state is StoredState.HERE]
    # Of the checkpoints, 4 is the newest; alpha is 1. Nothing but version 0 is needed beside.
    assert here[0] == 0
    assert len(here) < 6
    assert not [each for each in check_weights(run) if each.fault]
    exported = export_model(run, ended.home, tmp_path / "exported", version=5)
    assert exported.facts.weights_sha256 == published.sha256
    merged = load_file(tmp_path / "exported" / "model.safetensors")
    path = run.store.fetch(published, tmp_path / "joiner")
    adapter, tensors = adapter_at(path), found_at(path)
    assert adapter is not None
    for layer in adapter.targets:
        first, second = (tensors[name].float() for name in matrix_names(layer))
        whole = tensors[f"{layer}.weight"].float() + adapter.scaling * (second @ first)
        torch.testing.assert_close(merged[f"{layer}.weight"], whole.to(torch.bfloat16), rtol=0, atol=0)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert loaded.dtype == torch.bfloat16
