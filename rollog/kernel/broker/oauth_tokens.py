"""Tokens for OAUTHBEARER: from an endpoint that is asked with client credentials, or from a file."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING

from kafka.net.sasl.oauth import AbstractTokenProvider

from rollog.kernel.addresses import public_address
from rollog.kernel.broker.security import table
from rollog.kernel.broker.tls import trust
from rollog.kernel.errors import BrokerRefused, BrokerUnreachable, ConfigError

if TYPE_CHECKING:
    from rollog.kernel.broker.security import OAuthSettings, Secret

_timeout_seconds = 5.0
_renew_before_seconds = 30.0
_default_lifetime_seconds = 300.0
_largest_answer_bytes = 1 << 20
_client_errors = range(400, 500)


def token_provider(oauth: OAuthSettings) -> AbstractTokenProvider:
    """Where the library asks for a token at each connection."""
    return TokenOfFile(oauth.token) if oauth.token is not None else TokenOfEndpoint(oauth)


class TokenOfFile(AbstractTokenProvider):  # type: ignore[misc]  # the library is untyped
    """A token that somebody else keeps fresh; read anew each time."""

    def __init__(self, token: Secret) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        """The token. Raises ConfigError where it cannot be read."""
        return self._token.read().strip()


class TokenOfEndpoint(AbstractTokenProvider):  # type: ignore[misc]  # the library is untyped
    """Asks the endpoint for a token and keeps it until shortly before its end; may be used from several threads."""

    def __init__(self, oauth: OAuthSettings) -> None:
        super().__init__()
        self._oauth = oauth
        self._lock = threading.Lock()
        self._token = ""
        self._ends = 0.0

    def token(self) -> str:
        """A token that is good for a while. Raises BrokerRefused where the endpoint refuses, or does not answer."""
        with self._lock:
            if time.monotonic() >= self._ends:
                self._token, lifetime = self._asked()
                self._ends = time.monotonic() + max(0.0, lifetime - _renew_before_seconds)
            return self._token

    def _asked(self) -> tuple[str, float]:
        oauth = self._oauth
        assert oauth.token_url is not None
        assert oauth.client_secret is not None
        shown = public_address(oauth.token_url)
        form = {"grant_type": "client_credentials"} | ({"scope": oauth.scope} if oauth.scope else {})
        request = urllib.request.Request(  # noqa: S310 - the settings allow https alone
            oauth.token_url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": _basic(oauth.client_id or "", oauth.client_secret.read())},
        )
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=self._context()), _NoRedirects()
        )
        try:
            with opener.open(request, timeout=_timeout_seconds) as answer:
                return _token_in(answer.read(_largest_answer_bytes), shown)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in _client_errors:
                raise BrokerUnreachable(
                    f"the token endpoint {shown} answers {error.code}: look there"
                ) from None
            raise BrokerRefused(
                f"the token endpoint {shown} refuses the client {oauth.client_id!r} ({error.code}): correct"
                f" {table}.oauth_client_id and the secret in {oauth.client_secret}"
            ) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):
                raise BrokerRefused(
                    f"the certificate of the token endpoint {shown} was not taken ({error.reason.reason}): set"
                    f" {table}.oauth_ca_file to the certificate of whoever signed it"
                ) from None
            raise BrokerUnreachable(
                f"the token endpoint {shown} does not answer ({error.reason}): check the address and the network"
            ) from None
        except TimeoutError:
            raise BrokerUnreachable(
                f"the token endpoint {shown} does not answer within {_timeout_seconds:g} s: look there"
            ) from None

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(context, self._oauth.ca_file, f"{table}.oauth_ca_file")
        return context


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The client's secret goes to the endpoint that was named, and nowhere else."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none: what comes is an HTTPError."""


def _basic(client_id: str, client_secret: str) -> str:
    # Both are encoded as in a form before they are joined (RFC 6749, section 2.3.1).
    pair = ":".join(urllib.parse.quote_plus(part) for part in (client_id, client_secret))
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _token_in(answer: bytes, shown: str) -> tuple[str, float]:
    """The token and its lifetime in seconds."""
    try:
        found = json.loads(answer)
        token = found["access_token"]
        lifetime = float(found.get("expires_in", _default_lifetime_seconds))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{table}.oauth_token_url: {shown} gives no access_token in JSON; name the token endpoint itself"
        ) from None
    # Control characters would end the field of the token in the exchange with the broker.
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ConfigError(f"{table}.oauth_token_url: what {shown} gives as access_token is no token")
    return token, lifetime
