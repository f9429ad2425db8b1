"""Objects of large samples: whole or not there, inside their folder, and silence is told from absence."""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import PayloadAltered, PayloadError, PayloadMissing, PayloadStoreSilent
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.weights import WeightsStore
from schemas import Payload

if TYPE_CHECKING:
    from pathlib import Path

topics = RunTopics("rollog-test", "run")


@pytest.fixture(params=["file", "memory", "s3"])
def weights(request: pytest.FixtureRequest, tmp_path: Path) -> WeightsStore:
    match request.param:
        case "file":
            uri = (tmp_path / "store").as_uri()
        case "s3":
            uri = f"s3://{request.getfixturevalue('s3_bucket')}/weights"
        case _:
            uri = f"memory://{uuid4().hex}/weights"
    store = WeightsStore(uri)
    store.publish(0, b"weights")
    return store


def a_payload(data: bytes) -> Payload:
    return Payload(
        sha256=sha256(data).hexdigest(),
        num_bytes=len(data),
        num_prompt_tokens=0,
        num_tokens=(1,),
        num_trained_tokens=1,
    )


def test_what_was_put_is_fetched_listed_and_deleted(weights: WeightsStore) -> None:
    store = PayloadStore(weights, topics)
    names = sorted(store.put(data) for data in (b"one", b"two", b"one"))
    assert store.names() == sorted({*names})
    assert store.fetch(a_payload(b"two")) == b"two"
    assert store.num_bytes == 6
    assert weights.names() == [weights.publish(0, b"weights").name], "weights know nothing of it"
    store.delete(a_payload(b"one").sha256)
    store.delete(a_payload(b"one").sha256)
    assert store.delete_all() == 1
    assert store.names() == []
    assert not weights.is_local or not (weights.directory / "payloads").exists()  # type: ignore[operator]


def test_runs_that_share_a_store_have_their_own_objects(weights: WeightsStore) -> None:
    one, other = PayloadStore(weights, topics), PayloadStore(weights, RunTopics("rollog-test", "other"))
    one.put(b"alike")
    other.put(b"alike")
    one.delete_all()
    assert other.fetch(a_payload(b"alike")) == b"alike"


def test_other_bytes_under_the_name_are_refused_and_no_more_are_read_than_named(
    weights: WeightsStore,
) -> None:
    store = PayloadStore(weights, topics)
    name = store.put(b"true")
    fs, root = weights.filesystem
    path = f"{root}/payloads/rollog-test.run/{name}"
    for other in (b"fake", b"truetrue" * 1000, b""):
        fs.pipe_file(path, other)
        with pytest.raises(PayloadAltered, match=name):
            store.fetch(a_payload(b"true"))


def test_a_store_that_answers_and_one_that_is_not_there_are_told_apart(weights: WeightsStore) -> None:
    store = PayloadStore(weights, topics)
    with pytest.raises(PayloadMissing, match="is not in"):
        store.fetch(a_payload(b"never"))
    for name in weights.names():
        weights.delete(name)
    with pytest.raises(PayloadStoreSilent, match="no weights of the run"):
        store.fetch(a_payload(b"never"))


def test_nothing_is_written_where_the_store_is_not(tmp_path: Path) -> None:
    store = PayloadStore(WeightsStore(str(tmp_path / "unmounted")), topics)
    with pytest.raises(PayloadStoreSilent, match="cannot be written"):
        store.put(b"data")
    assert list(tmp_path.iterdir()) == []


def test_no_name_leads_out_of_the_folder(weights: WeightsStore) -> None:
    store = PayloadStore(weights, topics)
    for name in ("../" + weights.names()[0], "..", "", "AB" * 32):
        with pytest.raises(PayloadAltered):
            store.fetch(replace(a_payload(b"x"), sha256=name))
        with pytest.raises(PayloadAltered):
            store.delete(name)
    with pytest.raises(PayloadError, match="no prefix and name of a run"):
        PayloadStore(weights, RunTopics("rollog", "../other"))


def test_only_objects_of_a_certain_age_are_listed_as_old(tmp_path: Path) -> None:
    weights = WeightsStore(str(tmp_path))
    weights.publish(0, b"weights")
    store = PayloadStore(weights, topics)
    old, new = store.put(b"old"), store.put(b"new")
    os.utime(tmp_path / "payloads" / "rollog-test.run" / old, (1000, 1000))
    assert store.names(least_age_seconds=3600.0) == [old]
    assert store.names() == sorted([old, new])
    store.put(b"old")
    assert store.names(least_age_seconds=3600.0) == [], "whoever needs it again makes it young"
