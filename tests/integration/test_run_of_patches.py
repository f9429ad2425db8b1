"""A run in bfloat16 whose versions are patches: followed by its worker, audited, archived, replayed, joined late."""

from __future__ import annotations

import shutil
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from support.recorded_steps import recording_of, replayed
from support.small_training import notices
from support.threaded_run import small_settings, whole_run

from consumers.archive import WeightsChoice, export_archive
from consumers.audit.auditor import audit_run
from rollog.cli.main import cli
from rollog.kernel.archived_weights import archived_weights
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.errors import VersionPruned
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.versions.files import read_manifest
from rollog.kernel.weights import WeightsStore
from rollog.run.model_export import export_model
from rollog.run.recorded_run import RecordedRun
from rollog.run.role_settings import trainer_settings
from rollog.run.stored_weights import StoredState, check_weights, list_weights
from rollog.run.weights_pruning import prune_weights

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result
    from support.threaded_run import WholeRun

    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.engine]


@contextmanager
def ended_run(kafka_address: str, home: Path, patches: str) -> Iterator[WholeRun]:
    """A run of five steps that has come to its end."""
    settings = small_settings(
        home,
        f"run-{uuid.uuid4().hex[:12]}",
        run={"num_steps": 5},
        model={"dtype": "bfloat16"},
        optimizer={"learning_rate": 1e-5},
        weights={"patches": patches},
        rollout={"engine": "transformers", "capacity": 8, "first_load_tolerance": 0.02},
    )
    with whole_run(KafkaBroker(kafka_address), home, settings) as run:
        run.to_its_end()
        yield run


@pytest.fixture(scope="module", params=["auto", "off"])
def shared(
    kafka_address: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[WholeRun]:
    """The run of several tests, which write nothing to its topics."""
    with ended_run(kafka_address, tmp_path_factory.mktemp("run-of-patches"), request.param) as run:
        yield run


@pytest.fixture
def ended(shared: WholeRun, tmp_path: Path) -> Iterator[WholeRun]:
    """That run; what a test does to its weights is undone afterwards."""
    weights, kept = shared.home / "weights", tmp_path / "kept"
    shutil.copytree(weights, kept)
    yield shared
    shutil.rmtree(weights)
    kept.rename(weights)


@pytest.fixture(params=["auto", "off"])
def pruned(kafka_address: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WholeRun]:
    """A run of one test, whose versions it lets go."""
    with ended_run(kafka_address, tmp_path, request.param) as run:
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


def test_a_run_of_patches_is_whole_for_everyone_who_reads_it(ended: WholeRun, tmp_path: Path) -> None:
    store, published = WeightsStore(ended.manifest.weights_uri), notices(ended.broker, ended.topics)
    bases = [None if notice.base is None else notice.base.version for notice in published]
    is_patched = ended.settings.weights.patches == "auto"
    assert bases == [None, *(range(5) if is_patched else [None] * 5)]
    # The worker has compared version 0 at a tolerance below the noise of another model's.
    assert {len(notice.probe.logprobs) for notice in published if notice.probe is not None} == {31}
    report = ended.audited()
    assert not any(check.num_unchecked for check in report.checks)

    for notice in published:
        joined = store.fetch(notice, tmp_path / f"joiner-{notice.version}")
        assert read_manifest(joined)[0].digest == notice.sha256

    recording = recording_of(
        ended.broker, trainer_settings(ended.settings, ended.manifest, ended.home), tmp_path / "downloads"
    )
    _, steps = replayed(recording, 0, 5)
    assert [step.weights_sha256 for step in steps] == [notice.sha256 for notice in published[1:]]
    assert not any(step.differing for step in steps)

    export_archive(ended.broker, ended.topics, store, tmp_path / "run.zip", weights=WeightsChoice.ALL)
    archive = ArchiveBroker(tmp_path / "run.zip")
    assert audit_run(archive, ended.topics, archived_weights(archive.file)).is_clean
    copy = VersionCopy(tmp_path / "copy")
    for notice in (published[2], published[5]):
        archived_weights(archive.file).bring(notice, copy)
        assert read_manifest(copy.path)[0].digest == notice.sha256


@pytest.mark.slow
def test_the_16th_version_is_stored_as_changes_since_version_0_as_well(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 20},
        model={"dtype": "bfloat16"},
        optimizer={"learning_rate": 1e-6},
        trainer={"checkpoint_every_steps": 100},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        run.to_its_end()
        published = [notice for notice in notices(run.broker, run.topics) if notice.version >= 16]
        bases = [notice.base.version for notice in published if notice.base is not None]
        assert bases == [15, 0, 16, 17, 18, 19]
        assert run.audited().is_clean
        recorded = recorded_run(run)
        # With alpha 1, 18 stays for those that lag; 17 and 16 are what it is made of, and 0.
        list(prune_weights(recorded, run.home, keep_newest=2, sleep=lambda _: None))
        here = {each.version: each.form for each in list_weights(recorded) if each.state is StoredState.HERE}
        assert list(here) == [0, 16, 17, 18, 19, 20]
        assert here[16] == "patch of 0"
        assert [each.fault for each in check_weights(recorded)] == [None] * len(here)


def test_the_audit_names_an_altered_patch_and_what_is_made_of_it(ended: WholeRun) -> None:
    store, published = WeightsStore(ended.manifest.weights_uri), notices(ended.broker, ended.topics)
    path = ended.home / "weights" / store.file_names(published[3])[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))

    report = audit_run(ended.broker, ended.topics, store)

    named = {finding.record_id for check in report.checks for finding in check.findings}
    is_patched = published[3].base is not None
    assert named == ({"version 3", "version 4", "version 5"} if is_patched else {"version 3"})
    path.unlink()
    store.delete(published[3].name)
    lines = "\n".join(audit_run(ended.broker, ended.topics, store).lines())
    assert ("3 version(s) (3-5)" if is_patched else "1 version(s) (3)") in lines


def test_commands_tell_what_would_go_and_what_is_lost(ended: WholeRun) -> None:
    where = [ended.topics.run, "--broker", ended.broker.address, "--home", str(ended.home)]
    where += ["--set", f"run.prefix={ended.topics.prefix}"]

    def call(*words: str) -> Result:
        return CliRunner().invoke(cli, ["weights", *words, *where], standalone_mode=False)

    would = call("prune", "--keep-newest", "2", "--dry-run")
    is_patched = ended.settings.weights.patches == "auto"
    assert f"versions that go: {'none' if is_patched else '1'}" in would.output, would
    assert call("check").return_value == 0
    store, published = WeightsStore(ended.manifest.weights_uri), notices(ended.broker, ended.topics)
    assert len(published) == 6, "nothing is pruned by a dry run"
    store.delete(published[3].name)
    lost = call("check")
    assert lost.return_value == 1
    assert f"6 versions read, {3 if is_patched else 1} lost or damaged" in lost.output
    assert f"version 3: weights {published[3].name}" in lost.output
    assert call("list").output.count("missing") == (3 if is_patched else 1)


def test_any_version_that_is_kept_can_be_exported_and_a_pruned_one_is_said_to_be(
    pruned: WholeRun, tmp_path: Path
) -> None:
    run = recorded_run(pruned)
    is_patched = pruned.settings.weights.patches == "auto"
    forms = [each.form for each in list_weights(run)]
    assert forms == ["full", *(f"patch of {n}" if is_patched else "full" for n in range(5))]
    published = notices(pruned.broker, pruned.topics)
    list(prune_weights(run, pruned.home, keep_newest=2, sleep=lambda _: None))
    here = [each.version for each in list_weights(run) if each.state is StoredState.HERE]
    # The chain of 5 begins at 0. Version 4 has a checkpoint, and alpha is 1.
    assert here == ([0, 1, 2, 3, 4, 5] if is_patched else [0, 2, 3, 4, 5])
    for version in here:
        directory = tmp_path / f"model-{version}"
        exported = export_model(run, pruned.home, directory, version=version)
        assert exported.facts.weights_sha256 == published[version].sha256
    assert not [each for each in check_weights(run) if each.fault]
    if not is_patched:
        with pytest.raises(VersionPruned, match="version 1 were pruned"):
            export_model(run, pruned.home, tmp_path / "gone", version=1)
        assert not (tmp_path / "gone").exists()
