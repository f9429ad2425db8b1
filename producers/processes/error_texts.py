"""What is told of an error that code raised which is not ours. Imports only the standard library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from traceback import FrameSummary

most_error_characters = 2_000


def error_with_place(error: BaseException, frames: Sequence[FrameSummary]) -> str:
    """Its type, where the last of these frames is, and its message; cut, and without half pairs of surrogates."""
    place = f" at {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return _sendable(f"{type(error).__name__}{place}: {_message(error)}")


def error_message(error: BaseException) -> str:
    """Its message alone, likewise."""
    return _sendable(_message(error))


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001  # an error's own text may raise
        return f"(its message raised {type(second).__name__})"


def _sendable(text: str) -> str:
    return text.encode(errors="replace").decode()[:most_error_characters]
