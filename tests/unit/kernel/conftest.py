"""One S3-compatible server for the tests of the stores; each test has a bucket of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.s3_store import S3Server, environment_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty bucket; the environment is that of a role that uses it."""
    environment_of(monkeypatch, s3_server.address)
    return s3_server.make_bucket()
