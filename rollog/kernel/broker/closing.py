"""What clients without a connection share: they can be closed, once, and refuse to be used afterwards."""

from __future__ import annotations

from rollog.kernel.lifecycle import Component


class Closing(Component):
    """A client that can be closed."""

    def __init__(self) -> None:
        self._is_closed = False

    def close(self) -> None:
        """Nothing more may be asked afterwards."""
        self._is_closed = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError("this client is closed")
