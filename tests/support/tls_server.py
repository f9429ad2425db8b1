"""A server over TLS whose answers a test makes: an endpoint, or a broker of few words."""

from __future__ import annotations

import socketserver
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.certificates import Authority

_look_seconds = 0.02
"""How often the server looks for its end."""


@contextmanager
def tls_server(authority: Authority, handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """The port of localhost where `handler` serves connections, one at a time, with a certificate of `authority`."""
    issued = authority.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(_look_seconds,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
