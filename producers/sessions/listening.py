"""Where the policy endpoint listens, and under which name it is reached."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from producers.sessions.endpoint_limits import in_address
from rollog.kernel.errors import ConfigError
from rollog.settings.agent import is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the endpoint listens: host and port (0: a free one), and the name under which agents reach it.

    With `certfile` and `keyfile`, PEM files, it speaks HTTPS there; anywhere but on loopback it needs them.
    """

    host: str = "127.0.0.1"
    port: int = 0
    public_host: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    def bound(self) -> socket.socket:
        """A bound socket. Raises ConfigError where others would read keys, or where it cannot be had."""
        if self.certfile is None and not is_loopback(self.host):
            raise ConfigError(
                f"the policy endpoint listens on loopback only, not on agent.host = {self.host!r}, without "
                "agent.ssl_certfile"
            )
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise ConfigError(
                f"the policy endpoint cannot listen at agent.host = {self.host!r}, agent.port = {self.port}: {error}; "
                "name an address of this machine and a free port, or port 0"
            ) from error

    def address_of(self, bound: socket.socket) -> str:
        """What `/v1` is added to."""
        scheme = "http" if self.certfile is None else "https"
        return f"{scheme}://{in_address(self.public_host or self.host)}:{bound.getsockname()[1]}"
