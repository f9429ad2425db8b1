"""HTTP calls to an inference server: one place where what a network does becomes an error of ours.

    400, 413, 422   EngineError   this request is refused; others go on
    500             EngineError   where the server still answers /health, EngineDied otherwise
    anything else   EngineDied    nothing that the server was asked for can be relied on: refused or reset connections,
                                  time-outs, 401, 404, 429, 502, 503, redirects

The key goes into a header and nowhere else: no message and no log shows it. Redirects are not followed, proxies of the
environment not used. Needs aiohttp (extra `agents`).
"""

from __future__ import annotations

import json
import os
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollog.kernel.addresses import public_address
from rollog.kernel.errors import ConfigError, EngineDied, EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from rollog.settings.generation import RolloutConfig

_keep_alive_seconds = 2.0
"""Less than the 5 s after which vLLM closes a connection that is not used: a request is never sent into one."""
_most_answer_bytes = 256 << 20
_most_shown = 300
_ok = 200
_refused = frozenset({400, 413, 422})
_failed = 500


class ServerRefused(EngineDied):
    """The server answered, but not with what was asked for: `status` says what."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceServer:
    """Where the server is and how long to wait for it; the key shows in no representation."""

    address: str
    key: str | None = field(default=None, repr=False)
    certificates: str | None = None
    call_seconds: float = 30.0
    load_seconds: float = 600.0
    start_seconds: float = 300.0

    @property
    def is_in_clear(self) -> bool:
        """Whether what is sent can be read on the way."""
        parts = urlsplit(self.address)
        return parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost", "::1"}


def inference_server(rollout: RolloutConfig) -> InferenceServer:
    """The server that the settings name, with its key. Raises ConfigError."""
    if rollout.server_address is None:
        raise ConfigError(
            'rollout.engine = "remote" needs rollout.server_address, such as http://127.0.0.1:8000'
        )
    return InferenceServer(
        address=_address(rollout.server_address),
        key=_key(rollout),
        certificates=rollout.server_certificates,
        call_seconds=rollout.server_call_seconds,
        load_seconds=rollout.server_load_seconds,
        start_seconds=rollout.server_start_seconds,
    )


def _address(given: str) -> str:
    parts = urlsplit(given)
    if public_address(given) != given or parts.username is not None:
        raise ConfigError(
            f"rollout.server_address = {public_address(given)!r} was given with a user or a key; name a variable or a "
            "file of the key instead (rollout.server_variable, rollout.server_file)"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"rollout.server_address = {given!r} is no address of a server: write http://host:port or https://host:port"
        )
    return given.rstrip("/").removesuffix("/v1")


def _key(rollout: RolloutConfig) -> str | None:
    if rollout.server_variable is not None:
        place, key = (
            f"environment variable {rollout.server_variable}",
            os.environ.get(rollout.server_variable),
        )
        if not key:
            raise ConfigError(f"{place} (rollout.server_variable) is not set where the worker starts; set it")
    elif rollout.server_file is not None:
        place = f"rollout.server_file = {rollout.server_file!r}"
        try:
            key = Path(rollout.server_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{place} cannot be read: {getattr(error, 'strerror', None) or 'no text'}"
            ) from None
    else:
        return None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{place} holds no key: one line of ASCII characters without spaces")
    return key


class ServerCalls:
    """An open client of one server. `close` ends its connections."""

    def __init__(self, server: InferenceServer) -> None:
        try:
            import aiohttp  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise ConfigError('rollout.engine = "remote" needs aiohttp; install rollog[agents]') from error
        self.server = server
        self._aiohttp: Any = aiohttp
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_keep_alive_seconds, ssl=_trusted(server.certificates)
            ),
            trust_env=False,
        )
        self._headers = {} if server.key is None else {"Authorization": f"Bearer {server.key}"}

    async def close(self) -> None:
        """End all connections: the server ends what it was computing for them."""
        await self._session.close()

    async def get(self, path: str, *, with_key: bool = True) -> Any:
        """What the server answers, as JSON (None: nothing). Raises EngineError, EngineDied."""
        return await self._answer("GET", path, None, self.server.call_seconds, with_key=with_key)

    async def post(
        self, path: str, body: object = None, *, seconds: float | None = None, is_bounded: bool = True
    ) -> Any:
        """The same for a call with a body; `is_bounded` false waits for as long as it takes."""
        limit = (seconds or self.server.call_seconds) if is_bounded else None
        return await self._answer("POST", path, body, limit)

    async def on_workers(self, method: str, *args: str, seconds: float | None = None) -> list[dict[str, Any]]:
        """Call a method of the server's workers and return what each answered. Raises as `get`."""
        answer = await self.post("/collective_rpc", {"method": method, "args": list(args)}, seconds=seconds)
        results = answer.get("results") if isinstance(answer, dict) else None
        if (
            not isinstance(results, list)
            or not results
            or not all(isinstance(each, dict) for each in results)
        ):
            raise EngineDied(f"{self._place('/collective_rpc')} answered no results for {method}")
        return results

    async def events(self, path: str, body: object) -> AsyncGenerator[Any, None]:
        """The pieces of a streamed answer, as JSON. Raises as `get`, also where it breaks off."""
        async with self._sent("POST", path, body, None, with_key=True) as response:
            async for line in _lines(response):
                content = line.strip().removeprefix(b"data:").strip()
                if content == b"[DONE]":
                    return
                piece = self._json(content, path) if content else None
                if isinstance(piece, dict) and "error" in piece:
                    await self._fail(f"{self._place(path)} ended its answer: {_start(content)}")
                if piece is not None:
                    yield piece
        raise EngineDied(f"{self._place(path)} ended its answer before it was complete")

    async def _answer(
        self, method: str, path: str, body: object, seconds: float | None, *, with_key: bool = True
    ) -> Any:
        async with self._sent(method, path, body, seconds, with_key=with_key) as response:
            content = await _read(response)
        return self._json(content, path) if content else None

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: object, seconds: float | None, *, with_key: bool
    ) -> AsyncIterator[Any]:
        """A response with status 200."""
        aiohttp = self._aiohttp
        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=self.server.call_seconds)
        try:
            async with self._session.request(
                method,
                self.server.address + path,
                json=body,
                timeout=limit,
                allow_redirects=False,
                headers=self._headers if with_key else {},
            ) as response:
                if response.status != _ok:
                    await self._refuse(response, path)
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise ConfigError(
                f"{self.server.address} has no certificate that is trusted here ({error.certificate_error}): name the "
                "file of the certificates to trust with rollout.server_certificates"
            ) from None
        except TimeoutError as error:
            raise EngineDied(
                f"{self._place(path)} did not answer in {seconds or self.server.call_seconds:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineDied(
                f"{self._place(path)} cannot be reached: {type(error).__name__}: {error}"
            ) from error

    async def _refuse(self, response: Any, path: str) -> None:
        said = _start(await _read(response))
        message = f"{self._place(path)} answered {response.status}: {said}"
        if response.status in _refused:
            raise EngineError(message)
        if response.status == _failed and path != "/health":
            await self._fail(message)
        raise ServerRefused(message, response.status)

    async def _fail(self, message: str) -> None:
        """Raise EngineError where the server goes on, EngineDied otherwise."""
        raise EngineError(message) if await self._is_healthy() else ServerRefused(message, _failed)

    async def _is_healthy(self) -> bool:
        try:
            await self.get("/health")
        except EngineError:
            return False
        return True

    def _json(self, content: bytes, path: str) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{self._place(path)} answered no JSON: {_start(content)}") from error

    def _place(self, path: str) -> str:
        return f"the server at {self.server.address} ({path})"


def _trusted(certificates: str | None) -> ssl.SSLContext | bool:
    if certificates is None:
        return True
    try:
        return ssl.create_default_context(cafile=Path(certificates).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"rollout.server_certificates = {certificates!r} is no file of certificates (PEM): {error}"
        ) from error


async def _lines(response: Any) -> AsyncIterator[bytes]:
    """Lines of any length: the first one of an answer repeats the whole prompt."""
    rest = bytearray()
    async for chunk in response.content.iter_any():
        rest += chunk
        if len(rest) > _most_answer_bytes:
            raise EngineDied(f"the server answered with a line of more than {_most_answer_bytes} bytes")
        if b"\n" not in chunk:
            continue
        *lines, last = rest.split(b"\n")
        rest = last
        for line in lines:
            yield bytes(line)


async def _read(response: Any) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > _most_answer_bytes:
            raise EngineDied(f"the server answered with more than {_most_answer_bytes} bytes")
    return bytes(content)


def _start(content: bytes) -> str:
    return repr(content[:_most_shown].decode(errors="replace"))
