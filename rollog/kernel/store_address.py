"""Opening a store by its address, and what its errors mean. The one place that knows how object stores behave.

    s3://bucket/folder   ->   s3fs, with listings that are never cached and short time-outs

Credentials and the endpoint are no settings: they come from the environment of each role (`AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_DEFAULT_REGION` and so on), from the files or machine roles that
Amazon's library knows, or from fsspec's configuration (`FSSPEC_S3='{"endpoint_url": ...}'`). No manifest holds them.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec

from rollog.kernel.addresses import public_address
from rollog.kernel.errors import ConfigError

_s3 = ("s3", "s3a")
_with_buckets = {*_s3, "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "obs", "r2"}
"""Stores of objects in buckets: folders need not be made, and making one could make a bucket of a mistyped name."""

_s3_times = {"connect_timeout": 5, "read_timeout": 15}
_s3_retries = {"max_attempts": 1}
"""s3fs tries five times by itself; with botocore's own tries within each a call could take six minutes."""

_silent_numbers = {
    errno.EBUSY,
    errno.EIO,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
_silent_types = {
    "HTTPClientError",
    "ConnectionError",
    "ClientConnectionError",
    "FSTimeoutError",
    "ClientPayloadError",
}
"""Names of botocore's, aiohttp's and fsspec's errors of a connection, among the bases of an error's class."""
_without_credentials = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
}


def open_filesystem(uri: str) -> tuple[Any, str]:
    """The fsspec filesystem of an address of a weights store, and the path there. Raises ConfigError."""
    shown = public_address(uri)
    try:
        filesystem, root = fsspec.core.url_to_fs(_decoded(uri), **_options(uri))
    except ImportError as error:
        raise ConfigError(
            f"weights.uri = {shown!r} needs a package that is not installed ({error}); install it, for example "
            "s3fs for s3:// or gcsfs for gs://"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"weights.uri = {shown!r} is not an address fsspec knows ({error}); use for example "
            "file:///path or s3://bucket/path"
        ) from error
    return filesystem, str(root)


def _decoded(uri: str) -> str:
    """The address of a directory of this disk as fsspec takes it, which decodes nothing: `file:///my%20runs`.

    Where a directory is there under the name as it is written, it is that one: an earlier rollog made it.
    """
    place = uri.removeprefix("file://")
    return uri if place == uri or Path(place).exists() else f"file://{unquote(place)}"


def protocols(filesystem: Any) -> tuple[str, ...]:
    """The schemes that a filesystem stands for."""
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def has_buckets(filesystem: Any) -> bool:
    """Whether files are objects in a bucket that somebody else makes."""
    return not _with_buckets.isdisjoint(protocols(filesystem))


def is_silence(error: BaseException) -> bool:
    """Whether the store may answer a little later: it was not reached, took too long, or said that it is busy."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, PermissionError | FileNotFoundError):
        return False
    # Some of botocore's are an OSError without a number, too.
    by_number = isinstance(error, OSError) and error.errno in _silent_numbers
    return by_number or not _silent_types.isdisjoint(_names(error))


def remedy(error: BaseException) -> str:
    """What to do about an error of an object store."""
    if not _without_credentials.isdisjoint(_names(error)):
        return "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this role's environment"
    if isinstance(error, PermissionError):
        return (
            "the credentials are wrong or may not do this: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of this "
            "role, and that they may read, write, list and delete in the bucket"
        )
    if isinstance(error, FileNotFoundError):
        return "make the bucket, or correct weights.uri; rollog makes none"
    if is_silence(error):
        return "check the endpoint (AWS_ENDPOINT_URL, AWS_DEFAULT_REGION), and that this machine reaches it"
    return "check that the store exists, is writable and has room"


def _names(error: BaseException) -> set[str]:
    return {base.__name__ for base in type(error).__mro__}


def _options(uri: str) -> dict[str, Any]:
    """What s3fs is told; what fsspec's own configuration says wins."""
    if uri.partition("://")[0] not in _s3:
        return {}
    told: dict[str, Any] = {
        name: value for each in _s3 for name, value in fsspec.config.conf.get(each, {}).items()
    }
    given = told.get("config_kwargs", {})
    # botocore writes into the table of retries that it is given, so each filesystem has its own.
    times = {**_s3_times, "retries": dict(_s3_retries)}
    # Other processes write and delete: a cached listing would hide a version that is there.
    return {"use_listings_cache": False, "config_kwargs": {**times, **given}}
