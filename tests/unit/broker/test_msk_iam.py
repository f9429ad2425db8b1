"""Credentials of AWS in place of a password: what is said to a broker, as the cloud's own library would sign it.

No cluster of that cloud is at hand: a few lines stand for one that checks the signature.
"""

from __future__ import annotations

import json
import socketserver
import struct
from typing import TYPE_CHECKING, Any

import pytest
from support.tls_server import tls_server

from rollog.kernel.broker.preflight import refusal, wait_for_broker
from rollog.kernel.errors import BrokerRefused
from rollog.settings.security import SecurityConfig, security_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.certificates import Authority

    from rollog.kernel.broker.security import SecuritySettings

auth: Any = pytest.importorskip("botocore.auth")
requests: Any = pytest.importorskip("botocore.awsrequest")
credentials: Any = pytest.importorskip("botocore.credentials")

secret_key = "planted-secret-key"
handshake, authenticate, metadata = 17, 36, 3
denied = 58


class SigningBroker:
    """Lets in whoever has signed with `secret_key`."""

    port = 0

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        broker = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while length := self.rfile.read(4):
                    self.wfile.write(broker.answer(self.rfile.read(struct.unpack(">i", length)[0])))

        self.handler = Handler

    def answer(self, request: bytes) -> bytes:
        key, _, correlation_id, num_of_name = struct.unpack_from(">hhih", request)
        body = request[10 + num_of_name :]
        if key == handshake:
            answer = struct.pack(">hi", 0, 0)
        elif key == authenticate:
            self.heard.append(body[4:])
            answer = (
                struct.pack(">hhi", 0, -1, 2) + b"{}"
                if is_signed(json.loads(body[4:]))
                else struct.pack(">hhi", denied, -1, 0)
            )
        else:
            assert key == metadata
            answer = struct.pack(">iih", 1, 1, 9) + b"localhost" + struct.pack(">ihii", self.port, -1, 1, 0)
        return struct.pack(">ii", len(answer) + 4, correlation_id) + answer


def is_signed(said: dict[str, str]) -> bool:
    """Whether botocore makes the same signature of what is said."""
    access_key, _, region, service, _ = said["x-amz-credential"].split("/")
    held = credentials.Credentials(access_key, secret_key, said.get("x-amz-security-token"))
    signer = auth.SigV4QueryAuth(held, service, region, expires=int(said["x-amz-expires"]))
    request = requests.AWSRequest("GET", f"https://{said['host']}/?Action=kafka-cluster%3AConnect")
    request.context["timestamp"] = said["x-amz-date"]
    signer._modify_request_before_signing(request)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return bool(signer.signature(text, request) == said["x-amz-signature"])


@pytest.fixture
def broker(authority: Authority) -> Iterator[SigningBroker]:
    made = SigningBroker()
    with tls_server(authority, made.handler) as port:
        made.port = port
        yield made


@pytest.fixture
def security(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SecuritySettings:
    """As docs/security.md has it, and nothing of this machine's own credentials."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret_key)
    table = {"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM", "ca_file": str(authority.path)}
    return security_settings(SecurityConfig.model_validate(table))


@pytest.mark.parametrize("token", [None, "a-session-token"])
def test_credentials_of_the_environment_sign_what_is_said_and_the_secret_stays(
    broker: SigningBroker, security: SecuritySettings, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    wait_for_broker(f"localhost:{broker.port}", 10, security=security)
    assert len(broker.heard) == 1
    assert secret_key.encode() not in broker.heard[0]


def test_other_credentials_are_refused_by_name(
    broker: SigningBroker, security: SecuritySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    found = refusal(f"localhost:{broker.port}", security)
    assert isinstance(found, BrokerRefused)
    assert "give them kafka-cluster:Connect on the cluster" in str(found)


@pytest.mark.parametrize("missing", ["AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"])
def test_what_is_missing_to_sign_with_is_named(
    broker: SigningBroker, security: SecuritySettings, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(missing)
    found = refusal(f"localhost:{broker.port}", security)
    assert isinstance(found, BrokerRefused)
    assert "set AWS_DEFAULT_REGION and give this process a role or AWS_PROFILE" in str(found)
