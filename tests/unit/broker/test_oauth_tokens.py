"""Tokens of an endpoint: asked once, kept, and refused by name."""

from __future__ import annotations

import base64
import http.server
import json
from typing import TYPE_CHECKING

import pytest
from support.tls_server import tls_server

from rollog.kernel.broker.oauth_tokens import TokenOfEndpoint
from rollog.kernel.broker.security import OAuthSettings, Secret
from rollog.kernel.errors import BrokerRefused, BrokerUnreachable, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.certificates import Authority


class Endpoint:
    """Answers requests over https with what it is told to, and keeps what was asked."""

    url = ""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.status = 200
        self.answer: object = {"access_token": "first", "expires_in": 3600}
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.asked.append((body, self.headers["Authorization"]))
                self.send_response(endpoint.status)
                self.send_header("Location", "https://elsewhere.invalid/")
                self.end_headers()
                self.wfile.write(json.dumps(endpoint.answer).encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.handler = Handler


@pytest.fixture
def endpoint(authority: Authority) -> Iterator[Endpoint]:
    made = Endpoint()
    with tls_server(authority, made.handler) as port:
        made.url = f"https://localhost:{port}/token"
        yield made


def tokens(endpoint: Endpoint, ca_file: Path | None, directory: Path) -> TokenOfEndpoint:
    (directory / "secret").write_text("hush:1\n")
    return TokenOfEndpoint(
        OAuthSettings(
            token_url=endpoint.url,
            client_id="me",
            client_secret=Secret("broker.security.oauth_client_secret", file=directory / "secret"),
            scope="kafka",
            ca_file=ca_file,
        )
    )


def test_a_token_is_asked_for_once_and_again_before_its_end(
    endpoint: Endpoint, authority: Authority, tmp_path: Path
) -> None:
    provider = tokens(endpoint, authority.path, tmp_path)
    assert [provider.token(), provider.token()] == ["first", "first"]
    ((body, header),) = endpoint.asked
    assert body == "grant_type=client_credentials&scope=kafka"
    assert base64.b64decode(header.removeprefix("Basic ")) == b"me:hush%3A1"
    endpoint.answer = {"access_token": "short", "expires_in": 5}
    brief = tokens(endpoint, authority.path, tmp_path)
    assert [brief.token(), brief.token()] == ["short", "short"]
    assert len(endpoint.asked) == 3


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        ((401, {}), BrokerRefused, "refuses the client 'me'"),
        ((302, {}), BrokerUnreachable, "answers 302"),
        ((503, {}), BrokerUnreachable, "answers 503"),
        ((200, []), ConfigError, "gives no access_token"),
        ((200, {"access_token": "a\u0001b"}), ConfigError, "is no token"),
    ],
)
def test_what_is_no_token_is_named_without_the_secret(
    endpoint: Endpoint,
    authority: Authority,
    tmp_path: Path,
    *,
    answer: tuple[int, object],
    kind: type[Exception],
    told: str,
) -> None:
    endpoint.status, endpoint.answer = answer
    with pytest.raises(kind) as caught:
        tokens(endpoint, authority.path, tmp_path).token()
    assert told in str(caught.value)
    assert "hush" not in str(caught.value)


def test_an_endpoint_that_nobody_vouches_for_gets_no_secret(endpoint: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(BrokerRefused, match="oauth_ca_file"):
        tokens(endpoint, None, tmp_path).token()
    assert endpoint.asked == []
