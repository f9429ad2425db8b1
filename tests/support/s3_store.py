"""An S3-compatible store on loopback for tests (moto's server), and servers in its place that misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any, Self

import boto3  # type: ignore[import-untyped]
import s3fs
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

credentials = {
    "AWS_ACCESS_KEY_ID": "access",
    "AWS_SECRET_ACCESS_KEY": "hush",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class S3Server:
    """A running server, inside the `with` block."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self) -> Self:
        self._server.start()
        self.address = "http://{}:{}".format(*self._server.get_host_and_port())
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def make_bucket(self) -> str:
        """Name of a new, empty bucket."""
        bucket = f"b{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=bucket)
        return bucket

    @property
    def client(self) -> Any:
        """Amazon's own client, which is not the one that the product uses."""
        return boto3.client(
            "s3",
            endpoint_url=self.address,
            aws_access_key_id=credentials["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=credentials["AWS_SECRET_ACCESS_KEY"],
            region_name=credentials["AWS_DEFAULT_REGION"],
        )

    @property
    def buckets(self) -> set[str]:
        return {bucket["Name"] for bucket in self.client.list_buckets()["Buckets"]}

    @contextlib.contextmanager
    def asking_for_credentials(self) -> Iterator[None]:
        """Within this the server refuses whoever it does not know, which is everybody."""
        self._reset_auth("0")
        yield
        self._reset_auth("inf")

    def _reset_auth(self, count: str) -> None:
        request = urllib.request.Request(
            f"{self.address}/moto-api/reset-auth", data=count.encode(), headers={"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()


def environment_of(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Name the endpoint and the credentials as a role's environment does."""
    for name, value in {**credentials, "AWS_ENDPOINT_URL": address}.items():
        monkeypatch.setenv(name, value)
    # A filesystem that was made for another endpoint would be used again.
    s3fs.S3FileSystem.clear_instance_cache()


def free_address() -> str:
    """An address of this machine at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def answers(address: str, replies: list[bytes]) -> Iterator[list[bytes]]:
    """A server that gives these replies, one a connection, the last one again and again; yields the requests."""
    host, _, port = address.removeprefix("http://").partition(":")
    asked: list[bytes] = []
    with socket.create_server((host, int(port))) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        asked.append(connection.recv(1 << 16))
                        connection.sendall(replies.pop(0) if len(replies) > 1 else replies[0])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
