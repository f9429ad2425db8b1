"""One schema registry that speaks Confluent's REST API, over HTTP.

What answers is not trusted: an answer is bounded in time and size, redirections are not followed, an `https` server
must have a certificate that is trusted, credentials go to the named address alone. A registry that is away, slow or
answers nothing usable raises RegistryUnreachable, and whoever asked tries again; what it refuses raises
RegistryRefused with its own words.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

from rollog.kernel.addresses import public_address
from rollog.kernel.errors import ConfigError, RegistryRefused, RegistryUnreachable
from rollog.kernel.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schemas.catalogue import Definition

_most_answer_bytes = 4 << 20
_most_shown_characters = 400
_media_type = "application/vnd.schemaregistry.v1+json"
_largest_id = 2**31 - 1

_ok = range(200, 300)
_redirections = range(300, 400)
_not_found = 404
_no_credentials = (401, 403)
_try_again = (408, 425, 429)
_failed = range(500, 600)

Method = Literal["GET", "POST", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAddress:
    """Where a registry is and who asks.

    `credentials` gives the value of the header `Authorization`; it is called for each question, because a token may be
    replaced while the process lives. It raises ConfigError where there are none.
    """

    url: str
    credentials: Callable[[], str] | None = field(default=None, repr=False)
    certificates: str | None = None
    timeout_seconds: float = 5.0


def checked_url(given: str) -> str:
    """The address without its last slash. Raises ConfigError for what is no address of a registry."""
    parts = urlsplit(given)
    if public_address(given) != given or parts.username is not None:
        raise ConfigError(
            f"registry.url = {public_address(given)!r} was given with a user or a key; name them with "
            "registry.credentials_variable or registry.credentials_file"
        )
    try:
        port = parts.port
    except ValueError:
        port = 0
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or port == 0
        or parts.query
        or parts.fragment
    ):
        raise ConfigError(
            f"registry.url = {given!r} is no address of a schema registry: write https://host:port/path"
        )
    return given.rstrip("/")


class RegistryClient:
    """Asks one registry. Nothing is connected before the first question, and nothing stays connected after one.

    Raises ConfigError for a malformed address, for certificates that are none, and for credentials that are missing or
    would travel in clear.
    """

    def __init__(self, address: RegistryAddress) -> None:
        self._url = checked_url(address.url)
        self._parts = urlsplit(self._url)
        self._address = address
        is_here = self._parts.hostname in {"127.0.0.1", "localhost", "::1"}
        if address.credentials is not None and self._parts.scheme == "http" and not is_here:
            raise ConfigError(
                f"registry.url = {self._url!r} would send credentials in clear: name an https address"
            )
        if address.credentials is not None:
            address.credentials()
        self._trusted = _trusted(address.certificates) if self._parts.scheme == "https" else None

    @property
    def url(self) -> str:
        """The address, without a slash at its end."""
        return self._url

    def schema_of(self, schema_id: int) -> str | None:
        """The text of the Avro schema of an id; None where there is no such id, or its schema is not Avro."""
        answer = self._ask("GET", f"/schemas/ids/{schema_id}")
        if answer is None or answer.get("schemaType", "AVRO") != "AVRO":
            return None
        text = answer.get("schema")
        if not isinstance(text, str):
            raise self._unusable(f"schema id {schema_id}", "no text of a schema")
        return text

    def registered_id(self, subject: str, definition: Definition) -> int | None:
        """The id of a schema under a subject; None where the subject, or the schema under it, is not there."""
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}", _schema(definition))
        return None if answer is None else self._id(answer, subject)

    def register(self, subject: str, definition: Definition) -> int:
        """Register a schema under a subject and return its id; one that is there already keeps its own.

        Raises RegistryRefused where it is not compatible with those before it.
        """
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", _schema(definition))
        if answer is None:
            raise self._unusable(subject, "that the subject cannot be written")
        return self._id(answer, subject)

    def incompatibility(self, subject: str, definition: Definition) -> str | None:
        """Why a schema could not be registered under a subject now; None where it could."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions?verbose=true"
        answer = self._ask("POST", path, _schema(definition))
        if answer is None:
            return None
        compatible = answer.get("is_compatible")
        if not isinstance(compatible, bool):
            raise self._unusable(subject, "nothing about compatibility")
        if compatible:
            return None
        said = answer.get("messages")
        return _shown("; ".join(map(str, said))) if isinstance(said, list) and said else "it gives no reason"

    def compatibility(self, subject: str) -> str | None:
        """The compatibility level that a subject has of its own; None where it has none."""
        answer = self._ask("GET", f"/config/{quote(subject, safe='')}")
        level = None if answer is None else answer.get("compatibilityLevel")
        return level if isinstance(level, str) else None

    def set_compatibility(self, subject: str, level: str) -> None:
        """Give a subject a compatibility level of its own."""
        self._ask("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": level})

    def subjects(self, start: str) -> list[str]:
        """The subjects whose names begin like this; those that are deleted are not among them."""
        path = f"/subjects?subjectPrefix={quote(start, safe='')}"
        found = self._content("GET", path)
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self._unusable(path, "no list of subjects")
        # A registry may not know the parameter, and name them all.
        return [each for each in found if each.startswith(start)]

    def delete(self, subject: str) -> bool:
        """Delete a subject with its versions, for good; returns whether it was there.

        The schemas keep their ids where another subject has them.
        """
        path = f"/subjects/{quote(subject, safe='')}"
        # A registry deletes for good only what was deleted before.
        was_there = self._content("DELETE", path) is not None
        return self._content("DELETE", f"{path}?permanent=true") is not None or was_there

    def _id(self, answer: dict[str, Any], subject: str) -> int:
        found = answer.get("id")
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _largest_id:
            raise self._unusable(subject, f"the id {found!r}, which does not fit four bytes")
        return found

    def _ask(self, method: Method, path: str, body: object = None) -> dict[str, Any] | None:
        """The JSON object of an answer; None for 404. Raises RegistryUnreachable, RegistryRefused."""
        found = self._content(method, path, body)
        if found is not None and not isinstance(found, dict):
            raise self._unusable(path, "no object")
        return found

    def _content(self, method: Method, path: str, body: object = None) -> Any:
        """The JSON of an answer; None for 404. Raises RegistryUnreachable, RegistryRefused."""
        status, content = self._answered(method, path, body)
        if status in _ok:
            return self._json(content, path)
        if status == _not_found:
            # Anything else that listens there, a web server say, answers 404 as well, but not in these words.
            said = self._json(content, path)
            if isinstance(said, dict) and "error_code" in said:
                return None
            raise self._unusable(path, f"404 without an error code: {_start(content)}")
        reason = _reason(content)
        place = f"the schema registry at {self._url} ({path.partition('?')[0]})"
        if status in _no_credentials:
            raise RegistryRefused(
                f"{place} refuses the credentials ({status}): {reason}; name the right ones with "
                "registry.credentials_variable or registry.credentials_file"
            )
        if status in _redirections:
            raise RegistryRefused(
                f"{place} sends on to another address ({status}): name that one in registry.url"
            )
        if status in _failed or status in _try_again:
            raise RegistryUnreachable(f"{place} fails ({status}): {reason}")
        raise RegistryRefused(f"{place} refuses ({status}): {reason}")

    def _answered(self, method: Method, path: str, body: object) -> tuple[int, bytes]:
        seconds = self._address.timeout_seconds
        connection = self._connection()
        # A server that gives a byte now and then keeps within every single wait: the whole answer has a limit, too.
        # Kept here, because the library forgets the socket of an answer that ends with its connection.
        sockets: list[socket.socket] = []
        deadline = time.monotonic() + seconds
        limit = Timer(seconds, _cut, [connection, sockets])
        limit.daemon = True
        try:
            limit.start()
            connection.connect()
            sockets.append(connection.sock)
            _refuse_after(deadline)
            connection.request(
                method,
                self._parts.path + path,
                None if body is None else json.dumps(body).encode(),
                self._headers(),
            )
            response = connection.getresponse()
            content = response.read(_most_answer_bytes + 1)
            _refuse_after(deadline)
        except ssl.SSLCertVerificationError as error:
            raise RegistryRefused(
                f"the schema registry at {self._url} has no certificate that is trusted here "
                f"({error.verify_message}): name the file of certificates to trust with registry.certificates"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            is_late = time.monotonic() >= deadline or isinstance(error, TimeoutError)
            cause = f"no whole answer in {seconds:g} s" if is_late else f"{type(error).__name__}: {error}"
            raise RegistryUnreachable(
                f"the schema registry at {self._url} cannot be asked ({printable(cause)}); start it, or name "
                "another with registry.url"
            ) from None
        finally:
            limit.cancel()
            connection.close()
        if len(content) > _most_answer_bytes:
            raise self._unusable(path, f"more than {_most_answer_bytes} bytes")
        return response.status, content

    def _connection(self) -> http.client.HTTPConnection:
        host, port, seconds = self._parts.hostname or "", self._parts.port, self._address.timeout_seconds
        if self._trusted is None:
            return http.client.HTTPConnection(host, port, timeout=seconds)
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._trusted)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{_media_type}, application/json", "Content-Type": _media_type}
        if self._address.credentials is not None:
            try:
                headers["Authorization"] = self._address.credentials()
            except ConfigError as error:
                # They were there at the start: whoever keeps the file fresh may be at it.
                raise RegistryRefused(str(error)) from error
        return headers

    def _json(self, content: bytes, path: str) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise self._unusable(path, f"no JSON: {_start(content)}") from None

    def _unusable(self, about: str, what: str) -> RegistryUnreachable:
        return RegistryUnreachable(
            f"the schema registry at {self._url} answers {what} (asked about {about}); check that registry.url names "
            "a registry with Confluent's API, of Apicurio `/apis/ccompat/v7`"
        )


def basic_credentials(user_and_password: str) -> str:
    """The value of `Authorization` for `user:password`."""
    return "Basic " + base64.b64encode(user_and_password.encode()).decode()


def _schema(definition: Definition) -> dict[str, str]:
    # One text for one definition, so that a registry which compares texts finds it again.
    text = json.dumps(definition, separators=(",", ":"))
    # Apicurio reads the text "{}", the default of a string, as an object, and then no schema. Escaped, it does not.
    return {"schema": text.replace('"{}"', r'"\u007b}"'), "schemaType": "AVRO"}


def _trusted(certificates: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(
            cafile=None if certificates is None else str(Path(certificates).expanduser())
        )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"registry.certificates = {certificates!r} is no file of certificates (PEM): {error}"
        ) from error


def _cut(connection: http.client.HTTPConnection, sockets: Sequence[socket.socket]) -> None:
    """End the connection under whoever waits on it, also while TLS is agreed on."""
    for each in sockets or ([] if connection.sock is None else [connection.sock]):
        # It may have ended by itself meanwhile.
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _refuse_after(deadline: float) -> None:
    """Raise TimeoutError once the time is over: an answer that was cut off may look whole."""
    if time.monotonic() >= deadline:
        raise TimeoutError


def _reason(content: bytes) -> str:
    """What a refusal says: its message where it has one."""
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return _start(content)
    message = said.get("message") if isinstance(said, dict) else None
    return _shown(message) if isinstance(message, str) else _start(content)


def _start(content: bytes) -> str:
    return repr(content[:_most_shown_characters].decode(errors="replace"))


def _shown(text: str) -> str:
    return printable(text[:_most_shown_characters])
