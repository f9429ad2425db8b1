"""What clients without a connection share: they can be closed, once, and refuse to be used afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closing:
    """A client that can be closed."""

    def __init__(self) -> None:
        self._is_closed = False

    def close(self) -> None:
        """Nothing more may be asked afterwards."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError("this client is closed")
