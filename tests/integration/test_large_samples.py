"""Samples whose arrays are objects of the store, through a trainer: only what was fetched and fits is judged."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from support.large_samples import object_of, payloads_of, stored
from support.recorded_steps import recording_of, replayed
from support.small_training import (
    FakeRun,
    a_group,
    dispositions,
    trainer_settings,
    turn_until,
    turn_until_version,
)

from consumers.archive import WeightsChoice, export_archive
from consumers.audit.auditor import audit_run
from consumers.ledger import read_ledger
from consumers.lineage import Lineage
from consumers.trained_samples import trained_samples
from consumers.verification.reading import ChosenSamples
from consumers.verification.selection import Selection, chosen_records
from rollog.kernel.archived_weights import archived_weights
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import LedgerError, PayloadStoreSilent
from rollog.kernel.metrics import Metrics
from rollog.kernel.runs import register_run
from rollog.kernel.weights import WeightsStore
from rollog.run.pruning import prune_samples
from rollog.run.recorded_run import RecordedRun
from rollog.settings.run import BrokerConfig, RunConfig
from rollog.settings.settings import Settings, config_sha256
from schemas import Disposition, RunManifest
from trainer.recorded.history import read_history
from trainer.recorded.redo import Recording
from trainer.role import training_engine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from consumers.audit.findings import Check
    from rollog.kernel.broker.ports import Broker
    from schemas import Sample
    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings

pytestmark = pytest.mark.engine

topics = RunTopics("rollog-test", "large")


class LargeRun(FakeRun):
    """A run whose workers put every sample into the store."""

    settings: TrainerSettings

    def of_version(self, trainer: Trainer, *groups: int, version: int = 0) -> list[Sample]:
        digest = trainer.ledger.weights[version]
        return [each for group in groups for each in a_group(group, weights_sha256=digest, version=version)]

    def records(self, samples: Sequence[Sample]) -> list[Sample]:
        return [stored(sample, payloads_of(self.settings, self.topics)) for sample in samples]


def a_run(home: Path, model_path: str, **broker: Any) -> LargeRun:
    run = LargeRun(MemoryBroker(), topics)
    run.create_topics()
    run.settings = trainer_settings(
        home,
        topics,
        model_path,
        broker=BrokerConfig(samples_partitions=2, **broker),
        run_config=RunConfig(num_steps=2, close_timeout_seconds=30.0),
    )
    return run


@contextmanager
def trainer_of(run: LargeRun) -> Iterator[Trainer]:
    with start_trainer(run.settings, run.broker, Metrics(), training_engine(run.settings)) as trainer:
        yield trainer


def close(run: FakeRun, trainer: Trainer) -> None:
    run.stop()
    turn_until(trainer, lambda: trainer.ledger.is_closed, "closed")


def train_two_steps(run: LargeRun, *, are_large: bool = True) -> dict[int, str]:
    """The weights of each version."""
    with trainer_of(run) as trainer:
        for version in range(2):
            samples = run.of_version(trainer, 2 * version, 2 * version + 1, version=version)
            run.send(*(run.records(samples) if are_large else samples))
            turn_until_version(trainer, version + 1)
        close(run, trainer)
        return dict(trainer.ledger.weights)


def no_advantages(groups: Sequence[Sequence[Sample]], _: Mapping[str, object]) -> list[list[float | None]]:
    return [[None] * len(group) for group in groups]


def rows(run: LargeRun, broker: Broker | None = None, store: WeightsStore | None = None) -> list[Any]:
    store = store or WeightsStore(run.settings.weights_uri)
    return list(trained_samples(broker or run.broker, topics, store, advantages=no_advantages))


def check(run: LargeRun, name: str, *, is_clean: bool = True) -> Check:
    report = audit_run(run.broker, topics, WeightsStore(run.settings.weights_uri), settles_within_seconds=0.0)
    if is_clean:
        assert [finding for each in report.checks for finding in each.findings] == []
    return next(each for each in report.checks if each.name == name)


def reasons(run: FakeRun) -> dict[str, str]:
    return {each.sample_id: each.reason for record in run.ledger() for each in record.verdicts}


@pytest.fixture
def run(tmp_path: Path, model_path: str) -> LargeRun:
    return a_run(tmp_path, model_path)


def test_large_samples_train_the_very_weights_that_small_ones_do(
    run: LargeRun, tmp_path: Path, model_path: str
) -> None:
    small = a_run(tmp_path / "small", model_path)
    weights = train_two_steps(run)
    assert weights == train_two_steps(small, are_large=False)
    assert set(dispositions(run).values()) == {Disposition.TRAINED}
    assert check(run, "I16").num_checked == 8
    assert check(small, "I16").num_checked == 0
    assert [row["token_ids"] for row in rows(run)] == [row["token_ids"] for row in rows(small)]

    _, again = replayed(recording_of(run.broker, run.settings, tmp_path / "downloads"), 0, 2)
    assert {step.version: step.weights_sha256 for step in again} == {1: weights[1], 2: weights[2]}


def test_a_restarted_trainer_redoes_the_steps_from_the_objects(run: LargeRun) -> None:
    with trainer_of(run) as trainer:
        run.send(*run.records(run.of_version(trainer, 0, 1)))
        turn_until_version(trainer, 1)
        waiting = run.records(run.of_version(trainer, 2, 3, version=1))
        run.send(*waiting)
    with trainer_of(run) as trainer:
        turn_until_version(trainer, 2)
        close(run, trainer)
    check(run, "I6")


def test_readers_show_the_arrays_or_name_the_object(run: LargeRun) -> None:
    train_two_steps(run)
    sent = next(iter(run.sent.values()))
    (record,) = Lineage(run.broker, topics).sample(sent.sample_id)["records"]
    assert sent.payload is not None
    assert record["payload"]["sha256"] == sent.payload.sha256
    chosen = chosen_records(read_ledger(run.broker, topics), Selection())
    payloads = payloads_of(run.settings, topics)
    with run.broker.consumer(client_id="test") as consumer:
        reader = ChosenSamples(consumer, topics.samples, payloads)
        pieces = [piece for part in reader.parts(chosen) for piece in part.pieces]
    assert (reader.num_samples, reader.unread, reader.altered) == (8, [], [])
    assert sum(len(piece.token_ids) for piece in pieces) == sum(
        sample.payload.num_tokens[0] for sample in run.sent.values() if sample.payload
    )


def test_an_altered_object_makes_its_sample_dead_and_the_attempt_after_it_is_trained(
    run: LargeRun, tmp_path: Path
) -> None:
    with trainer_of(run) as trainer:
        records = run.records(run.of_version(trainer, 0, 1))
        path = object_of(records[0], tmp_path / "weights", topics)
        path.write_bytes(bytes(reversed(path.read_bytes())))
        run.send(*records)
        turn_until(trainer, lambda: Disposition.DEAD in dispositions(run).values(), "a dead sample")
        assert trainer.ledger.version == 0
        digest = trainer.ledger.weights[0]
        second = run.records(a_group(0, weights_sha256=digest, attempt=1)[:1])
        run.send(*second)
        turn_until_version(trainer, 1)
    assert "payload_altered" in reasons(run)[records[0].sample_id]
    assert dispositions(run)[second[0].sample_id] is Disposition.TRAINED
    check(run, "verdicts")


def test_an_object_that_comes_late_is_waited_for_and_nothing_else_waits_for_it(
    run: LargeRun, tmp_path: Path
) -> None:
    with trainer_of(run) as trainer:
        records = run.records(run.of_version(trainer, 0, 1, 2))
        path = object_of(records[0], tmp_path / "weights", topics)
        data = path.read_bytes()
        path.unlink()
        run.send(*records)
        turn_until_version(trainer, 1)
        assert trainer._stream.payloads.num_waiting == 1
        assert "does not have the objects of 1 large samples" in trainer._cause().what
        path.write_bytes(data)
        run.send(*run.records(run.of_version(trainer, 3)))
        turn_until_version(trainer, 2)
        close(run, trainer)
    assert set(dispositions(run).values()) == {Disposition.TRAINED}
    check(run, "I16")


def test_an_object_that_never_comes_makes_its_sample_dead(tmp_path: Path, model_path: str) -> None:
    run = a_run(tmp_path, model_path, payload_wait_seconds=0.2)
    with trainer_of(run) as trainer:
        records = run.records(run.of_version(trainer, 0, 1))
        object_of(records[0], tmp_path / "weights", topics).unlink()
        run.send(*records)
        turn_until(trainer, lambda: Disposition.DEAD in dispositions(run).values(), "a dead sample")
    assert "payload_missing" in reasons(run)[records[0].sample_id]


def test_while_the_store_is_away_nothing_is_judged_and_the_trainer_says_so(
    tmp_path: Path, model_path: str
) -> None:
    run = a_run(tmp_path, model_path, payload_wait_seconds=0.01)
    with trainer_of(run) as trainer:
        records = run.records(run.of_version(trainer, 0, 1))
        (tmp_path / "weights").rename(tmp_path / "elsewhere")
        run.send(*records)
        turn_until(trainer, lambda: trainer._stream.payloads.silence is not None, "a silent store")
        cause = trainer._cause()
        assert "4 large samples wait, and nothing is judged of them" in cause.what
        assert "check that the store is there" in cause.what
        assert dispositions(run) == {}
        (tmp_path / "elsewhere").rename(tmp_path / "weights")
        turn_until_version(trainer, 1)
    assert set(dispositions(run).values()) == {Disposition.TRAINED}


def test_a_sample_that_nobody_ordered_makes_the_trainer_fetch_nothing(run: LargeRun, tmp_path: Path) -> None:
    with trainer_of(run) as trainer:
        records = run.records(run.of_version(trainer, 0))
        object_of(records[0], tmp_path / "weights", topics).unlink()
        run.announce()
        run.write(records[0])
        turn_until(trainer, lambda: dispositions(run), "a verdict")
    assert "payload" not in reasons(run)[records[0].sample_id]


def test_redo_stops_and_names_the_object(run: LargeRun, tmp_path: Path) -> None:
    train_two_steps(run)
    record = next(iter(run.sent.values()))
    assert record.payload is not None
    path = object_of(record, tmp_path / "weights", topics)
    data = path.read_bytes()
    recording = recording_of(run.broker, run.settings, tmp_path / "downloads")
    path.write_bytes(bytes(reversed(data)))
    with pytest.raises(LedgerError, match=f"{record.sample_id}.*{record.payload.sha256}"):
        replayed(recording, 0, 2)
    found = check(run, "I16", is_clean=False)
    assert [finding.record_id for finding in found.findings] == [record.sample_id]
    path.unlink()
    with pytest.raises(LedgerError, match=record.payload.sha256):
        rows(run)
    path.write_bytes(data)
    check(run, "I16")


def test_an_archive_holds_the_objects(run: LargeRun, tmp_path: Path) -> None:
    weights = train_two_steps(run)
    path = tmp_path / "run.zip"
    store = WeightsStore(run.settings.weights_uri)
    register_run(run.broker, _manifest(run))
    manifest = export_archive(run.broker, topics, store, path, weights=WeightsChoice.ALL)
    assert len(manifest.payloads) == 8
    archive = ArchiveBroker(path)
    archived = archived_weights(archive.file)
    assert rows(run, archive, archived) == rows(run)
    report = audit_run(archive, topics, archived, ends_with=manifest.ledger_head)
    assert [finding for each in report.checks for finding in each.findings] == []
    recording = Recording(
        broker=archive,
        topics=topics,
        store=archived,
        downloads=tmp_path / "downloads",
        settings=run.settings,
        history=read_history(archive, topics),
    )
    _, again = replayed(recording, 0, 2)
    assert [step.weights_sha256 for step in again] == [weights[1], weights[2]]


def _manifest(run: LargeRun) -> RunManifest:
    return RunManifest(
        run=topics.run,
        prefix=topics.prefix,
        seed=5,
        config_json="{}",
        config_sha256=config_sha256("{}"),
        weights_uri=run.settings.weights_uri,
        rollog_version="0",
        created_unix_seconds=0.0,
    )


class _Full(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Nothing can be deleted on it."""

    cachable = False

    def rm_file(self, path: str) -> None:
        raise OSError(f"{path} stays")


def _prune(run: LargeRun, home: Path, store: WeightsStore, keep_steps: int = 1) -> list[str]:
    source = RecordedRun(
        broker=run.broker,
        topics=topics,
        store=store,
        settings=Settings(),
        manifest=_manifest(run),
        is_archive=False,
    )
    return list(prune_samples(source, home, keep_steps=keep_steps, is_dry_run=False))


def test_a_prune_cut_off_before_its_objects_leaves_orphans_that_the_next_one_deletes(
    run: LargeRun, tmp_path: Path
) -> None:
    train_two_steps(run)
    weights = str(tmp_path / "weights")
    payloads = payloads_of(run.settings, topics)
    before = set(payloads.names())
    with pytest.raises(OSError, match="stays"):
        _prune(run, tmp_path, WeightsStore(weights, filesystem=(_Full(), weights)))
    assert set(payloads.names()) == before
    second = {
        sample.payload.sha256 for sample in run.sent.values() if sample.payload and sample.group_id >= 2
    }
    check(run, "I16")
    lines = _prune(run, tmp_path, WeightsStore(weights))
    assert set(payloads.names()) == second
    assert lines == [f"{weights}: 4 objects of large samples were deleted, which no record names any more"]
    assert check(run, "I16").num_checked == 4
    assert "nothing to delete" in _prune(run, tmp_path, WeightsStore(weights))[0]


def test_redo_stops_where_the_store_is_away_and_names_the_object(run: LargeRun, tmp_path: Path) -> None:
    train_two_steps(run)
    with pytest.raises(PayloadStoreSilent, match=r"object [0-9a-f]{64} cannot be read"):
        rows(run, store=WeightsStore(str(tmp_path / "nowhere")))
