"""An archive gives a run back record by record, and damage to it is named."""

from __future__ import annotations

import json
import zipfile
import zlib
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from support.broker_topics import a_topic, read_to_end
from support.exports import content_of
from support.recorded_run import recorded_run, store_of
from support.run_auditor import RunAuditor

from consumers.archive import WeightsChoice, export_archive, write_archive
from consumers.audit.auditor import audit_run
from consumers.ledger import read_ledger
from rollog.kernel.archived_weights import archived_weights
from rollog.kernel.broker import archive_format
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.broker.archive_format import record_schema, topic_member, weights_member
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.topics import RunTopics, run_topic_names, runs_topic
from rollog.kernel.errors import ArchiveError, ConfigError, TopicMismatch, WeightsError
from rollog.kernel.runs import find_run, read_runs, register_run
from rollog.kernel.versions.files import read_manifest
from rollog.kernel.weights import WeightsStore
from schemas import RunManifest, WeightsPruned, WeightVersion
from schemas.codec import decode_as, encode
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.recorded.history import read_history
from trainer.recorded.recovery import restore_engine
from trainer.recorded.redo import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

topics = RunTopics("rollog-test", "run")


def places(broker: Any, names: list[str]) -> list[TopicPartition]:
    with broker.admin() as admin:
        specs = admin.describe_topics(names)
    return [TopicPartition(name, n) for name in names for n in range(specs[name].num_partitions)]


def archived_topic(path: Path, values: list[bytes]) -> tuple[str, Path]:
    """An archive of one topic that holds these values."""
    broker = MemoryBroker()
    topic = a_topic(broker)
    with broker.producer(client_id="writer") as producer:
        for value in values:
            producer.send(topic, 0, value, key=b"k", headers=[("h", b"v")])
    none = WeightsStore(str(path / "weights"))
    write_archive(broker, topics, [topic], none, path / "run.zip", weights=WeightsChoice.NONE)
    return topic, path / "run.zip"


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None], **options: Any) -> Path:
    """A copy of an archive whose members were changed, with a directory that fits."""
    with zipfile.ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    change(members)
    target = path.with_name("changed.zip")
    target.unlink(missing_ok=True)
    with zipfile.ZipFile(target, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


def without(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        del members[name]

    return change


def with_manifest(members: dict[str, bytes], change: Callable[[Any], None]) -> None:
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()


def replace_member(members: dict[str, bytes], topic: str, data: bytes) -> None:
    """Put other records into the first partition, size and sha256 included."""
    members[topic_member(topic, 0)] = data

    def change(manifest: Any) -> None:
        partition = manifest["topics"][topic]["partitions"][0]
        partition |= {"num_bytes": len(data), "sha256": sha256(data).hexdigest()}

    with_manifest(members, change)


def container(offsets: list[int], value: bytes = b"x") -> bytes:
    data = BytesIO()
    rows: list[Any] = [
        {"offset": offset, "timestamp_ms": 0, "key": None, "headers": [], "value": value}
        for offset in offsets
    ]
    fastavro.writer(data, record_schema, rows, codec="deflate")
    return data.getvalue()


def test_a_run_comes_back_record_by_record_with_its_weights_and_its_head(tmp_path: Path) -> None:
    with recorded_run() as run:
        names = [*run_topic_names(run.topics), runs_topic(run.topics.prefix)]
        path = tmp_path / "run.zip"
        manifest = export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.ALL)
        archive = ArchiveBroker(path)
        with run.broker.consumer(client_id="a") as before, archive.consumer(client_id="b") as after:
            for place in places(run.broker, names):
                assert after.end_offsets([place]) == before.end_offsets([place])
                assert read_to_end(archive, place.topic, [place.partition]) == read_to_end(
                    run.broker, place.topic, [place.partition]
                )
        assert manifest.ledger_head == read_ledger(archive, run.topics)[-1].digest.hex()
        assert archive.manifest == manifest
        store = archived_weights(archive.file)
        for record in read_to_end(archive, run.topics.weights):
            notice = decode_as(WeightVersion, record.value or b"")
            fetched = store.fetch(notice, tmp_path / "fetched")
            assert read_manifest(fetched)[0].digest == notice.sha256
            store.check(notice)
        assert len(store.names()) == 2 * (run.plan.num_steps + 1)
        auditor = RunAuditor(archive, run.topics, run.plan.groups, run.plan.freshness, 4, 2, 3)
        auditor.look()
        auditor.conclude(store)
        auditor._consumer.close()
        assert find_run(archive, run.topics.prefix, run.topics.run).run == run.topics.run
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["run.zip"]


def test_every_step_can_be_trained_again_from_an_archive_with_the_first_weights_alone(tmp_path: Path) -> None:
    with recorded_run() as run:
        path = tmp_path / "run.zip"
        export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.FIRST)
        archive = ArchiveBroker(path)
        history = read_history(archive, run.topics)
        engine = SimulatedTrainingEngine()
        recording = Recording(
            broker=archive,
            topics=run.topics,
            store=archived_weights(archive.file),
            downloads=tmp_path / "downloads",
            settings=run.trainer_settings,
            history=history,
        )
        restore_engine(engine, recording, [])
        assert content_of(engine) == history.state.weights[run.plan.num_steps]


def test_of_the_shared_register_only_the_runs_own_manifest_is_archived(tmp_path: Path) -> None:
    with recorded_run() as run:
        other = RunManifest(
            run="other",
            prefix=run.topics.prefix,
            seed=0,
            config_json="{}",
            config_sha256="0" * 64,
            weights_uri="memory://other",
            rollog_version="0",
            created_unix_seconds=0.0,
        )
        register_run(run.broker, other)
        path = tmp_path / "run.zip"
        export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.NONE)
        assert set(read_runs(ArchiveBroker(path), run.topics.prefix)) == {run.topics.run}


@pytest.mark.parametrize(("choice", "num_files"), [("all", 10), ("first", 2), ("none", 0)])
def test_weights_are_put_in_as_chosen(tmp_path: Path, choice: str, num_files: int) -> None:
    with recorded_run() as run:
        path = tmp_path / "run.zip"
        export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice(choice))
        archive = ArchiveBroker(path)
        store = archived_weights(archive.file)
        assert len(store.names()) == len(archive.manifest.weights) == num_files
        newest = decode_as(WeightVersion, read_to_end(archive, run.topics.weights)[-1].value or b"")
        if choice != "all":
            with pytest.raises(WeightsError, match=newest.name):
                store.fetch(newest, tmp_path / "fetched")


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with recorded_run() as run:
        store = store_of(run)
        store.delete(store.names()[-1])
        with pytest.raises(WeightsError, match="not in memory"):
            export_archive(run.broker, run.topics, store, tmp_path / "run.zip", weights=WeightsChoice.ALL)
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "run.zip").write_bytes(b"mine")
        with pytest.raises(ConfigError, match="exists already"):
            export_archive(run.broker, run.topics, store, tmp_path / "run.zip", weights=WeightsChoice.NONE)
        assert (tmp_path / "run.zip").read_bytes() == b"mine"
        with pytest.raises(ConfigError, match="cannot be written"):
            export_archive(
                run.broker, run.topics, store, tmp_path / "no" / "run.zip", weights=WeightsChoice.NONE
            )


def test_a_run_that_is_not_there_cannot_be_archived(tmp_path: Path) -> None:
    with pytest.raises(TopicMismatch, match="check the run's name"):
        export_archive(
            MemoryBroker(),
            topics,
            WeightsStore(str(tmp_path)),
            tmp_path / "run.zip",
            weights=WeightsChoice.NONE,
        )


def test_readers_find_their_block_from_any_offset(tmp_path: Path) -> None:
    values = [bytes([i % 251]) * 3000 for i in range(200)]
    topic, path = archived_topic(tmp_path, values)
    place = TopicPartition(topic, 0)
    with ArchiveBroker(path).consumer(client_id="reader") as consumer:
        for start in (0, 1, 21, 22, 99, 198, 199):
            consumer.assign({place: start})
            records = consumer.poll(0.0, max_records=500)
            assert [record.value for record in records] == values[start:]
            assert consumer.position(place) == 200


def test_nothing_can_be_written_to_an_archive(tmp_path: Path) -> None:
    topic, path = archived_topic(tmp_path, [b"x"])
    broker = ArchiveBroker(path)
    place = TopicPartition(topic, 0)
    with broker.admin() as admin, broker.consumer(client_id="r", group_id="g") as consumer:
        attempts: list[Callable[[], object]] = [
            lambda: broker.producer(client_id="w"),
            lambda: broker.transactional_producer("id"),
            lambda: consumer.commit({place: 1}),
            lambda: admin.create_topics([]),
            lambda: admin.delete_topics([topic]),
            lambda: admin.delete_records({place: 1}),
        ]
        for attempt in attempts:
            with pytest.raises(ArchiveError, match=r"run\.zip cannot be .*--broker"):
                attempt()
    with pytest.raises(WeightsError, match="could not be written"):
        archived_weights(broker.file).publish(0, b"weights")


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_flipped_byte_is_found_and_its_member_named(tmp_path: Path, where: str) -> None:
    topic, path = archived_topic(tmp_path, [b"x" * 1000] * 300)
    member = topic_member(topic, 0)

    def flip(members: dict[str, bytes]) -> None:
        data = bytearray(members[member])
        data[{"first": 0, "middle": len(data) // 2, "last": -1}[where]] ^= 1
        members[member] = bytes(data)

    broker = ArchiveBroker(rewritten(path, flip))
    with broker.consumer(client_id="r") as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        with pytest.raises(ArchiveError, match=f"{member} does not"):
            consumer.poll(0.0)


def test_versions_that_were_let_go_are_not_in_the_archive_and_its_audit_says_so(tmp_path: Path) -> None:
    with recorded_run() as run:
        store = store_of(run)
        with run.broker.producer(client_id="trainer") as producer:
            producer.send(run.topics.weights, 0, encode(WeightsPruned(versions=(1,)))).offset(10.0)
        for name in [name for name in store.names() if name.startswith("v000001-")]:
            store.delete(name)
        path = tmp_path / "run.zip"
        manifest = export_archive(run.broker, run.topics, store, path, weights=WeightsChoice.ALL)
        assert {weights.version for weights in manifest.weights.values()} == {
            0,
            *range(2, run.plan.num_steps + 1),
        }
        archive = ArchiveBroker(path)
        report = audit_run(
            archive, run.topics, archived_weights(archive.file), ends_with=manifest.ledger_head
        )
        assert report.is_clean, "\n".join(report.lines())
        assert [str(missing).split(",")[0] for missing in report.missing] == ["weights of 1 version(s) (1)"]


def test_a_swapped_weights_file_is_refused(tmp_path: Path) -> None:
    with recorded_run() as run:
        path = tmp_path / "run.zip"
        export_archive(run.broker, run.topics, store_of(run), path, weights=WeightsChoice.ALL)
        notice = decode_as(WeightVersion, read_to_end(run.broker, run.topics.weights)[0].value or b"")
        member = weights_member(notice.name)

        def swap(members: dict[str, bytes]) -> None:
            members[member] = bytes(len(members[member]))

        store = archived_weights(ArchiveBroker(rewritten(path, swap)).file)
        with pytest.raises(WeightsError, match="altered"):
            store.fetch(notice, tmp_path / "fetched")
        assert list((tmp_path / "fetched").iterdir()) == []


@contextmanager
def refused(path: Path, match: str) -> Iterator[None]:
    with pytest.raises(ArchiveError, match=match) as caught:
        yield
    assert str(path) in str(caught.value)


def read_all(path: Path, topic: str) -> None:
    with ArchiveBroker(path).consumer(client_id="r") as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        while consumer.poll(0.0):
            pass


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    topic, path = archived_topic(tmp_path, [b"x"] * 10)
    whole = path.read_bytes()
    other = tmp_path / "other.zip"
    for data in (b"", b"PK\x05\x06", b"garbage" * 100, whole[:-30], whole[: len(whole) // 2]):
        other.write_bytes(data)
        with refused(other, "cannot be read"):
            ArchiveBroker(other)
    with refused(tmp_path, "is not a file"):
        ArchiveBroker(tmp_path)
    with refused(tmp_path / "missing.zip", "cannot be read"):
        ArchiveBroker(tmp_path / "missing.zip")
    changed = rewritten(path, without("manifest.json"))
    with refused(changed, "manifest.json is missing"):
        ArchiveBroker(changed)
    changed = rewritten(path, without(topic_member(topic, 0)))
    with refused(changed, "is named by the manifest and missing"):
        ArchiveBroker(changed)
    changed = rewritten(path, lambda members: members.update({"../../etc/passwd": b"x"}))
    with refused(changed, "etc/passwd' is not named by the manifest"):
        ArchiveBroker(changed)
    changed = rewritten(path, lambda _: None, compression=zipfile.ZIP_DEFLATED)
    with refused(changed, "compressed"):
        ArchiveBroker(changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=2), "format version 2"),
        (lambda m: m.update(format="other"), "format"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.update(topics={"../../x": next(iter(m["topics"].values()))}), r"\.\./\.\./x"),
        (lambda m: m.update(weights={"../x": {"version": 0, "num_bytes": 0, "sha256": "0" * 64}}), r"\.\./x"),
        (lambda m: next(iter(m["topics"].values()))["partitions"][0].update(num_bytes=-1), "num_bytes"),
        (lambda m: next(iter(m["topics"].values()))["partitions"][0].update(num_bytes=1), "manifest says 1"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    _, path = archived_topic(tmp_path, [b"x"])
    changed = rewritten(path, lambda members: with_manifest(members, change))
    with refused(changed, message):
        ArchiveBroker(changed)


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    topic, path = archived_topic(tmp_path, [b"x"])
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(topic_member(topic, 0), b"other")
    with refused(path, "twice"):
        ArchiveBroker(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"garbage", "cannot be read"),
        (b"", "cannot be read"),
        (container([0, 1, 2])[:-20], "ends too early"),
        (container([0, 1]), "another number of records"),
        (container([0, 2, 1]), "do not rise"),
        (container([0, 1, 3]), "outside of its partition"),
        (container([0, 1, 2]) + b"\x02\x02x" + bytes(16), "cannot be read"),
        (container([0, 1, 2]).replace(b"timestamp_ms", b"timestamp_us"), "another schema"),
    ],
)
def test_members_with_a_fitting_digest_and_wrong_contents_are_named(
    tmp_path: Path, data: bytes, message: str
) -> None:
    topic, path = archived_topic(tmp_path, [b"x"] * 3)
    changed = rewritten(path, lambda members: replace_member(members, topic, data))
    with refused(changed, f"member {topic_member(topic, 0)} .*{message}"):
        read_all(changed, topic)


def test_a_block_that_would_grow_beyond_all_bounds_is_refused(
    tmp_path: Path,
) -> None:
    topic, path = archived_topic(tmp_path, [b"x"])
    good = container([0])
    sync = good[-16:]
    head = good[: good.index(sync) + 16]
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(80)) + squeezer.flush()
    data = head + b"\x02" + _long(len(bomb)) + bomb + sync
    changed = rewritten(path, lambda members: replace_member(members, topic, data))
    assert changed.stat().st_size < 1 << 20
    with refused(changed, f"more than {archive_format.largest_block_bytes} bytes"):
        read_all(changed, topic)


def _long(value: int) -> bytes:
    coded, out = value << 1, bytearray()
    while coded > 0x7F:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    return bytes([*out, coded])
