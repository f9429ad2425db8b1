"""The recount from raw records finds what was planted, and shares no code with the product."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from support.audited_run import AuditedRun, record_run
from support.exports import export_of, numbers
from support.patched_versions import publish_versions, versions_of

from benchmarks.chaos.raw_log import Raw
from benchmarks.chaos.recount import altered_weights, recount
from benchmarks.chaos.stored_weights import fault_of_version
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.weights import WeightsStore
from schemas import Disposition, LedgerKind, Step, WeightsPruned, WeightVersion
from schemas.codec import decode_as, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.altered_topics import RecordedTopics

    from benchmarks.chaos.recount import Recount
    from schemas import LedgerRecord

product = ("rollog", "consumers", "producers", "trainer", "schemas")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AuditedRun:
    return record_run(tmp_path_factory.mktemp("recounted"))


@dataclass(frozen=True)
class Planted:
    """One change of a run, and what the recount must say."""

    change: Callable[[AuditedRun], RecordedTopics]
    said: str


def raw(recorded: RecordedTopics, topic: str) -> list[Raw]:
    return [
        Raw(partition=record.partition, offset=record.offset, appended=0.0, value=record.value or b"")
        for record in sorted(recorded.all(topic), key=lambda found: (found.partition, found.offset))
    ]


def recounted(run: AuditedRun, recorded: RecordedTopics | None = None) -> Recount:
    topics, recorded = run.topics, recorded or run.recorded
    return recount(raw(recorded, topics.steps), raw(recorded, topics.samples), raw(recorded, topics.weights))


def test_a_run_as_it_was_made_has_no_faults(run: AuditedRun) -> None:
    result = recounted(run)

    assert result.faults == []
    assert result.is_closed
    assert result.num_trained_twice == 0
    assert result.num_steps == 4
    assert result.head == run.recorded_head
    assert sum(result.dispositions.values()) == result.num_samples
    assert {"trained", "dead", "lost"} <= result.dispositions.keys()
    assert altered_weights(raw(run.recorded, run.topics.weights), run.weights) == []


def doubled_verdict(run: AuditedRun) -> RecordedTopics:
    verdict = run.verdict(Disposition.TRAINED)
    last = run.ledger[-1].sequence
    return run.rechained(
        lambda record: (
            replace(record, verdicts=(*record.verdicts, verdict)) if record.sequence == last else record
        )
    )


def broken_chain(run: AuditedRun) -> RecordedTopics:
    record = run.steps[2]
    assert record.value is not None
    return run.recorded.with_value(record, record.value[:-1] + bytes([record.value[-1] ^ 1]))


def closed_twice(run: AuditedRun) -> RecordedTopics:
    group = next(group for record in run.ledger for group in record.closed_groups)
    last = run.ledger[-1].sequence
    return run.rechained(
        lambda record: (
            replace(record, closed_groups=(*record.closed_groups, group))
            if record.sequence == last
            else record
        )
    )


def without_sample(run: AuditedRun) -> RecordedTopics:
    return run.recorded.without(run.sample(run.verdict(Disposition.TRAINED)))


def altered_sample(run: AuditedRun) -> RecordedTopics:
    record = run.sample(run.verdict(Disposition.TRAINED))
    other = run.sample(run.verdict(Disposition.TRAINED, 1))
    return run.recorded.with_value(record, other.value)


def trained_twice(run: AuditedRun) -> RecordedTopics:
    first, second = run.verdict(Disposition.TRAINED), run.verdict(Disposition.TRAINED, 1)
    return run.with_verdict(second, group_id=first.group_id, replica=first.replica)


def missing_verdict(run: AuditedRun) -> RecordedTopics:
    chosen = run.verdict(Disposition.LOST)
    return run.rechained(
        lambda record: replace(record, verdicts=tuple(v for v in record.verdicts if v != chosen))
    )


def missing_notice(run: AuditedRun) -> RecordedTopics:
    return run.recorded.without(run.recorded.all(run.topics.weights)[1])


def skipped_version(run: AuditedRun) -> RecordedTopics:
    chosen = next(record.sequence for record in run.ledger if record.kind is LedgerKind.STEP)
    return run.rechained(lambda record: replace(record, version=record.version + (record.sequence >= chosen)))


def other_weights_before(run: AuditedRun) -> RecordedTopics:
    chosen = [record.sequence for record in run.ledger if record.kind is LedgerKind.STEP][1]

    def edit(record: LedgerRecord) -> LedgerRecord:
        if record.sequence != chosen:
            return record
        assert isinstance(record.body, Step)
        return replace(record, body=replace(record.body, weights_sha256_before="0" * 64))

    return run.rechained(edit)


planted = [
    Planted(doubled_verdict, "was disposed of before (trained)"),
    Planted(broken_chain, "does not name the sha256 of the record before it"),
    Planted(closed_twice, "closes group"),
    Planted(without_sample, "there is no sample at"),
    Planted(altered_sample, "has other bytes than were judged"),
    Planted(trained_twice, "was trained before"),
    Planted(missing_verdict, "has no disposition"),
    Planted(missing_notice, "notices of weights are not the"),
    Planted(skipped_version, "is due"),
    Planted(other_weights_before, "did not begin with the weights of version"),
]


@pytest.mark.parametrize("fault", planted, ids=lambda fault: fault.change.__name__)
def test_a_planted_fault_is_found(run: AuditedRun, fault: Planted) -> None:
    result = recounted(run, fault.change(run))

    assert any(fault.said in said for said in result.faults), result.faults
    assert result.num_trained_twice == (fault.change in {doubled_verdict, trained_twice})


def with_pruned(run: AuditedRun, *versions: int) -> RecordedTopics:
    place = TopicPartition(run.topics.weights, 0)
    return run.recorded.with_more(place, encode(WeightsPruned(versions=versions)))


def test_what_was_pruned_is_not_missed_and_what_must_stay_is(run: AuditedRun, tmp_path: Path) -> None:
    weights = run.copied_weights(tmp_path)
    _, second, _, fourth, *_ = sorted(weights.glob("*.manifest"))
    second.unlink()
    fourth.unlink()
    recorded = with_pruned(run, 1)
    assert recounted(run, recorded).faults == []
    faults = altered_weights(raw(recorded, run.topics.weights), weights)
    assert [fault.split(":")[0] for fault in faults] == ["weights of version 3 are not there"]
    assert "lets version 4 go, which must stay" in str(recounted(run, with_pruned(run, 1, 4)).faults)


def test_a_version_that_was_published_again_counts_as_it_is_now(run: AuditedRun, tmp_path: Path) -> None:
    weights = run.copied_weights(tmp_path)
    place = TopicPartition(run.topics.weights, 0)
    newest = decode_as(WeightVersion, run.recorded.all(run.topics.weights)[-1].value or b"")
    name = newest.name.replace(".manifest", "")[:8] + f"{0:016x}"
    for path in weights.glob(f"{newest.name.split('.')[0]}*"):
        if path.suffix != ".manifest":
            path.rename(weights / path.name.replace(newest.name.split(".")[0], name))
    text = (weights / newest.name).read_bytes().replace(newest.name.split(".")[0].encode(), name.encode())
    (weights / newest.name).unlink()
    (weights / f"{name}.manifest").write_bytes(text)
    again = replace(newest, name=f"{name}.manifest", manifest_sha256=sha256(text).hexdigest())
    recorded = run.recorded.with_more(place, encode(again))
    assert recounted(run, recorded).faults == []
    assert altered_weights(raw(recorded, run.topics.weights), weights) == []
    other = run.recorded.with_more(place, encode(replace(again, sha256="0" * 64)))
    assert "other weights of version" in str(recounted(run, other).faults)


def test_weights_that_are_gone_or_altered_are_found(run: AuditedRun, tmp_path: Path) -> None:
    weights = run.copied_weights(tmp_path)
    first, second, third, fourth, *_ = sorted(weights.glob("*.manifest"))
    first.write_bytes(b"other")
    second.unlink()
    shard_of(third).unlink()
    changed = bytearray(shard_of(fourth).read_bytes())
    changed[-1] ^= 1
    shard_of(fourth).write_bytes(changed)

    faults = altered_weights(raw(run.recorded, run.topics.weights), weights)

    assert [fault.split(":")[0] for fault in faults] == [
        "weights of version 0 have another sha256",
        "weights of version 1 are not there",
        "weights of version 2 are not there",
        "weights of version 3 have another sha256",
    ]


def test_a_manifest_that_names_other_tensors_than_its_shards_is_found(tmp_path: Path) -> None:
    notice = WeightsStore(str(tmp_path)).publish_tensors(0, export_of({"one": numbers(2, 3)}))
    manifest = tmp_path / notice.name
    assert fault_of_version(asdict(notice), tmp_path) is None
    content, _, storage = manifest.read_bytes().rstrip(b"\n").rpartition(b"\n")
    leaf = json.loads(content.partition(b"\n")[2])["tensors"][0][3][0]
    forged = content.replace(leaf.encode(), b"0" * 64)
    manifest.write_bytes(forged + b"\n" + storage + b"\n")
    noticed = {
        "sha256": sha256(forged).hexdigest(),
        "manifest_sha256": sha256(manifest.read_bytes()).hexdigest(),
    }
    fault = fault_of_version(asdict(notice) | noticed, tmp_path)
    assert fault is not None
    assert "another sha256: one in " in fault


def test_versions_that_are_patches_are_rebuilt_and_what_was_altered_is_found(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path))
    notices = publish_versions(store, versions_of(4))
    assert [fault_of_version(asdict(notice), tmp_path) for notice in notices] == [None] * 4
    shard = tmp_path / store.file_names(notices[2])[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    faults = [fault_of_version(asdict(notice), tmp_path) for notice in notices]
    assert faults[:2] == [None, None]
    assert all("another sha256" in str(fault) for fault in faults[2:])
    store.delete(notices[1].name)
    assert "based on what is not there" in str(fault_of_version(asdict(notices[3]), tmp_path))


def shard_of(manifest: Path) -> Path:
    return manifest.with_name(f"{manifest.stem}-00.safetensors")


@pytest.mark.parametrize("module", ["recount", "raw_log", "stored_weights", "stored_patches"])
def test_it_shares_no_code_with_the_product(module: str) -> None:
    script = f"import benchmarks.chaos.{module}, sys; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    loaded = ended.stdout.split()
    assert f"benchmarks.chaos.{module}" in loaded
    assert [name for name in loaded if name.partition(".")[0] in product] == []
