"""A schema registry that answers as Confluent's does, in memory, with troubles on demand.

The real one of the slow tests passes the same contract (`tests/contract/test_registry_contract.py`).
"""

from __future__ import annotations

import json
import re
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from schemas.compatibility import definition_breaks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Answer = tuple[int, dict[str, Any]]

_no_subject = 404, {"error_code": 40401, "message": "Subject not found"}
_no_schema = 404, {"error_code": 40403, "message": "Schema not found"}


class Trouble(Enum):
    """What the registry does in place of an answer."""

    SILENT = auto()
    TRICKLING = auto()
    FAILING = auto()
    REDIRECTING = auto()
    HTML = auto()
    NO_OBJECT = auto()
    ENDLESS = auto()
    CLOSING = auto()


@dataclass
class SmallRegistry:
    """What the registry holds. `asked` has the method and path of each question."""

    url: str = ""
    credentials: str | None = None
    trouble: Trouble | None = None
    refused_methods: set[str] = field(default_factory=set)
    refused_paths: str = "-"
    subjects: dict[str, list[int]] = field(default_factory=dict)
    deleted: dict[str, list[int]] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    other_types: set[int] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    over: Event = field(default_factory=Event)

    def add(self, text: str) -> int:
        """The id of a text, whatever it holds."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/subjects" or method == "DELETE":
            return self._listed_or_deleted(path.removeprefix("/subjects").removeprefix("/"), body)
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            return self._schema(int(found[1]))
        if found := re.fullmatch(r"/config/([^/]+)", path):
            return self._config(method, unquote(found[1]), body)
        if found := re.fullmatch(r"/compatibility/subjects/([^/]+)/versions", path):
            return self._compatibility(unquote(found[1]), body)
        if found := re.fullmatch(r"/subjects/([^/]+)(|/versions|/versions/latest)", path):
            asked = {"": self._look_up, "/versions": self._register, "/versions/latest": self._latest}
            return asked[found[2]](unquote(found[1]), body)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _listed_or_deleted(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return self._delete(unquote(path), is_permanent=bool(body)) if path else (200, sorted(self.subjects))

    def _schema(self, schema_id: int) -> Answer:
        if not 0 < schema_id <= len(self.texts):
            return _no_schema
        kind = {"schemaType": "PROTOBUF"} if schema_id in self.other_types else {}
        return 200, {"schema": self.texts[schema_id - 1], **kind}

    def _config(self, method: str, subject: str, body: dict[str, Any]) -> Answer:
        if method == "PUT":
            self.levels[subject] = body["compatibility"]
            return 200, {"compatibility": body["compatibility"]}
        if subject not in self.levels:
            return 404, {"error_code": 40408, "message": "Subject has no compatibility level of its own"}
        return 200, {"compatibilityLevel": self.levels[subject]}

    def _compatibility(self, subject: str, body: dict[str, Any]) -> Answer:
        if subject not in self.subjects:
            return _no_subject
        messages = self._breaks(subject, body["schema"])
        return 200, {"is_compatible": not messages, "messages": messages}

    def _latest(self, subject: str, _: dict[str, Any]) -> Answer:
        if subject not in self.subjects:
            return _no_subject
        known = self.subjects[subject]
        return 200, {
            "subject": subject,
            "version": len(known),
            "id": known[-1],
            "schema": self.texts[known[-1] - 1],
        }

    def _look_up(self, subject: str, body: dict[str, Any]) -> Answer:
        if subject not in self.subjects:
            return _no_subject
        for version, schema_id in enumerate(self.subjects[subject], 1):
            if json.loads(self.texts[schema_id - 1]) == json.loads(body["schema"]):
                return 200, {
                    "subject": subject,
                    "version": version,
                    "id": schema_id,
                    "schema": body["schema"],
                }
        return _no_schema

    def _register(self, subject: str, body: dict[str, Any]) -> Answer:
        try:
            named = isinstance(json.loads(body["schema"]), dict)
        except ValueError:
            named = False
        if not named:
            return 422, {"error_code": 42201, "message": "Input schema is an invalid Avro schema"}
        status, known = self._look_up(subject, body)
        if status == 200:
            return 200, {"id": known["id"]}
        if messages := self._breaks(subject, body["schema"]):
            return 409, {"error_code": 409, "message": f"Schema is incompatible: {messages}"}
        schema_id = self.add(body["schema"])
        self.subjects.setdefault(subject, []).append(schema_id)
        return 200, {"id": schema_id}

    def _delete(self, subject: str, *, is_permanent: bool) -> tuple[int, Any]:
        """As Confluent's: what is to go for good must have been deleted before, and keeps its level until then."""
        if is_permanent:
            known = self.deleted.pop(subject, None)
            self.levels.pop(subject, None)
        else:
            known = self.subjects.pop(subject, None)
            if known is not None:
                self.deleted[subject] = known
        return _no_subject if known is None else (200, list(range(1, len(known) + 1)))

    def _breaks(self, subject: str, text: str) -> list[str]:
        if self.levels.get(subject, "NONE") == "NONE":
            return []
        older = [json.loads(self.texts[each - 1]) for each in self.subjects.get(subject, [])]
        return [said for each in older for said in definition_breaks(each, json.loads(text))]


@contextmanager
def small_registry(
    *, credentials: str | None = None, certificate: tuple[Path, Path] | None = None
) -> Iterator[SmallRegistry]:
    """A registry on the loopback address for as long as the block lasts."""
    registry = SmallRegistry(credentials=credentials)

    class Handler(_Handler):
        served = registry

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    registry.url = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        registry.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    served: SmallRegistry

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = parts.path
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.command == "DELETE":
            body = {"permanent": True} if parts.query == "permanent=true" else {}
        self.served.asked.append(f"{self.command} {path}")
        if self.served.trouble is not None:
            self._fail(self.served.trouble)
        elif self.served.credentials not in {None, self.headers.get("Authorization")}:
            self._send(401, b'{"error_code": 40101, "message": "Unauthorized"}')
        elif self.command in self.served.refused_methods and re.search(self.served.refused_paths, path):
            self._send(403, b'{"error_code": 40301, "message": "Operation not permitted"}')
        else:
            status, answer = self.served.answer(self.command, path, body)
            self._send(status, json.dumps(answer).encode())

    def _fail(self, trouble: Trouble) -> None:
        match trouble:
            case Trouble.SILENT:
                self.served.over.wait(60)
            case Trouble.TRICKLING:
                self._trickle()
            case Trouble.FAILING:
                self._send(503, b'{"error_code": 50301, "message": "no leader"}')
            case Trouble.REDIRECTING:
                self.send_response(302)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()
            case Trouble.HTML:
                self._send(200, b"<html>hello</html>")
            case Trouble.NO_OBJECT:
                self._send(200, b"[1, 2]")
            case Trouble.ENDLESS:
                self._send(200, b'{"schema": "' + b"x" * (5 << 20) + b'"}')
            case Trouble.CLOSING:
                self.close_connection = True

    def _trickle(self) -> None:
        """A byte now and then, so that no single read takes long."""
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        deadline = time.monotonic() + 60
        while not self.served.over.wait(0.02) and time.monotonic() < deadline:
            try:
                self.wfile.write(b" ")
            except OSError:
                return

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
        """Nothing on the tests' screen."""
