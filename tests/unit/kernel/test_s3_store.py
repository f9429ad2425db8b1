"""The stores over S3's protocol: what another process wrote is seen, and each mistake is named with its remedy."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
import s3fs
from botocore.exceptions import (  # type: ignore[import-untyped]
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from support.s3_store import answers, environment_of, free_address

from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import PayloadAltered, PayloadStoreSilent, WeightsError, WeightsStoreSilent
from rollog.kernel.payloads import PayloadStore
from rollog.kernel.store_address import is_silence, open_filesystem, remedy
from rollog.kernel.weights import WeightsStore
from schemas import Payload

if TYPE_CHECKING:
    from support.s3_store import S3Server

content = b"weights" * 1000
busy = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def keys(server: S3Server, bucket: str) -> list[str]:
    return [entry["Key"] for entry in server.client.list_objects_v2(Bucket=bucket).get("Contents", ())]


def test_the_region_is_that_of_the_variable_which_the_pages_name(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "deploy.md").read_text(encoding="utf-8")
    (variable,) = re.findall(r"^\| `(\w+)` \| region of the bucket \|$", page, flags=re.MULTILINE)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "eu-south-2")
    # fsspec gives the filesystem of an earlier test again, which has read its region.
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem, _ = open_filesystem("s3://bucket/run")
    filesystem.connect()
    assert filesystem.s3.meta.region_name == "eu-south-2"


def test_a_version_of_another_process_is_seen_after_the_store_was_listed(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    store = WeightsStore(f"s3://{s3_bucket}/run")
    first = store.publish(0, content)
    assert store.names() == [first.name]
    assert store.fetch(first, tmp_path).read_bytes() == content
    program = (
        "from rollog.kernel.weights import WeightsStore\n"
        f"print(WeightsStore('s3://{s3_bucket}/run').publish(1, b'others').to_json())"
    )
    program = program.replace(".to_json()", ".name")
    written = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    # The same bytes under the same version have the same name: nothing is asked of the store for it.
    notice = WeightsStore("memory://elsewhere").publish(1, b"others")
    assert notice.name == written.stdout.strip()
    assert store.fetch(notice, tmp_path).read_bytes() == b"others"
    assert store.names() == [first.name, notice.name]
    s3_server.client.delete_object(Bucket=s3_bucket, Key=f"run/{notice.name}")
    assert store.names() == [first.name]


def test_a_version_is_one_object_that_appears_whole(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    large = os.urandom(1 << 20) * 70
    store = WeightsStore(f"s3://{s3_bucket}/run")
    uploading = threading.Event()

    def upload() -> None:
        store.publish(0, large)
        uploading.set()

    thread = threading.Thread(target=upload)
    thread.start()
    while not uploading.is_set():
        found = s3_server.client.list_objects_v2(Bucket=s3_bucket).get("Contents", ())
        assert [entry["Size"] for entry in found] in ([], [70 << 20])
    thread.join()
    assert keys(s3_server, s3_bucket) == [f"run/{store.names()[0]}"]
    notice = store.publish(0, large)
    assert store.fetch(notice, tmp_path / "fetched").stat().st_size == 70 << 20


def test_a_bucket_of_a_mistyped_name_is_not_made(s3_bucket: str, s3_server: S3Server) -> None:
    store = WeightsStore("s3://mistyped-bucket/run")
    with pytest.raises(
        WeightsError, match=r"s3://mistyped-bucket/run .*make the bucket, or correct weights.uri"
    ):
        store.publish(0, content)
    with pytest.raises(WeightsError, match="make the bucket"):
        store.try_writing()
    with pytest.raises(PayloadStoreSilent, match="mistyped-bucket"):
        PayloadStore(store, RunTopics("rollog", "run")).put(b"large")
    assert "mistyped-bucket" not in s3_server.buckets
    del s3_bucket


def test_refused_credentials_are_named_and_not_shown(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    store = WeightsStore(f"s3://{s3_bucket}/run")
    notice = store.publish(0, content)
    with s3_server.asking_for_credentials():
        for call in (
            store.try_writing,
            store.names,
            lambda: store.publish(1, content),
            lambda: store.fetch(notice, tmp_path),
            lambda: store.digest(notice.name),
        ):
            with pytest.raises(WeightsError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as caught:
                call()
            assert not isinstance(caught.value, WeightsStoreSilent)
            assert "hush" not in str(caught.value)


def test_missing_credentials_are_named(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(WeightsError, match="no credentials were found: set AWS_ACCESS_KEY_ID"):
        WeightsStore(f"s3://{s3_bucket}/run").publish(0, content)


def test_an_endpoint_where_nothing_listens_is_named_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    environment_of(monkeypatch, free_address())
    began = time.monotonic()
    with pytest.raises(WeightsStoreSilent, match=r"check the endpoint \(AWS_ENDPOINT_URL"):
        WeightsStore("s3://bucket/run").try_writing()
    # Tries of s3fs times those of botocore took 11 s and more.
    assert time.monotonic() - began < 10


def test_a_store_that_is_away_is_waited_for(s3_bucket: str, s3_server: S3Server, tmp_path: Path) -> None:
    del s3_bucket
    store = WeightsStore("s3://made-later/run", wait_seconds=60)
    notice = WeightsStore("memory://elsewhere").publish(0, content)
    filesystem = store.filesystem[0]
    failures = [ConnectionError("away"), TimeoutError("away"), OSError(16, "SlowDown")]
    original = filesystem.pipe_file

    def failing(path: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        original(path, data)

    s3_server.client.create_bucket(Bucket="made-later")
    filesystem.pipe_file = failing
    try:
        assert store.publish(0, content) == notice
    finally:
        del filesystem.pipe_file
    assert not failures
    assert store.fetch(notice, tmp_path).read_bytes() == content


def test_waiting_ends_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    environment_of(monkeypatch, free_address())
    store = WeightsStore("s3://bucket/run", wait_seconds=600)
    told = threading.Timer(1, store.stop_waiting)
    told.start()
    with pytest.raises(WeightsStoreSilent):
        store.publish(0, content)
    told.join()


def test_a_truncated_object_is_found_by_its_digest(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    store = WeightsStore(f"s3://{s3_bucket}/run")
    notice = store.publish(0, content)
    assert store.fetch(notice, tmp_path).exists()
    (tmp_path / notice.name).unlink()
    s3_server.client.put_object(Bucket=s3_bucket, Key=f"run/{notice.name}", Body=content[:-1])
    with pytest.raises(WeightsError, match=f"{len(content) - 1} bytes instead of {len(content)}"):
        store.fetch(notice, tmp_path)
    with pytest.raises(WeightsError, match="instead of"):
        store.publish(0, content)
    payloads = PayloadStore(store, RunTopics("rollog", "run"))
    name = payloads.put(b"a large sample")
    s3_server.client.put_object(Bucket=s3_bucket, Key=f"run/payloads/rollog.run/{name}", Body=b"a large")
    payload = Payload(sha256=name, num_bytes=14, num_prompt_tokens=0, num_tokens=(1,), num_trained_tokens=1)
    with pytest.raises(PayloadAltered):
        payloads.fetch(payload)


def test_a_busy_store_counts_as_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    address = free_address()
    environment_of(monkeypatch, address)
    with answers(address, [busy]) as asked, pytest.raises(WeightsStoreSilent):
        WeightsStore("s3://bucket/run").publish(0, content)
    assert asked


@pytest.mark.parametrize(
    "error",
    [
        ConnectTimeoutError(endpoint_url="http://store"),
        EndpointConnectionError(endpoint_url="http://store"),
        ReadTimeoutError(endpoint_url="http://store"),
        ConnectionClosedError(endpoint_url="http://store"),
        aiohttp.ClientPayloadError(),
        ConnectionResetError(),
        OSError(errno.EBUSY, "SlowDown"),
    ],
    ids=repr,
)
def test_a_connection_that_fails_in_any_way_is_silence(error: Exception) -> None:
    assert is_silence(error)
    assert "AWS_ENDPOINT_URL" in remedy(error)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "no"),
        FileNotFoundError("no"),
        OSError(errno.ENOSPC, "full"),
        NoCredentialsError(),
    ],
    ids=repr,
)
def test_what_waiting_does_not_mend_is_no_silence(error: Exception) -> None:
    assert not is_silence(error)


def test_old_versions_and_objects_are_deleted_one_by_one(s3_bucket: str, s3_server: S3Server) -> None:
    store = WeightsStore(f"s3://{s3_bucket}/run")
    kept, old = store.publish(1, content), store.publish(0, content)
    payloads = PayloadStore(store, RunTopics("rollog", "run"))
    payloads.put(b"one")
    s3_server.client.put_object(Bucket=s3_bucket, Key="run/others.txt", Body=b"not ours")
    store.delete(old.name)
    store.delete(old.name)
    assert payloads.delete_all() == 1
    assert sorted(keys(s3_server, s3_bucket)) == ["run/others.txt", f"run/{kept.name}"]
    assert store.num_bytes == len(content)
