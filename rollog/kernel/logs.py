"""Structured logging: an event and its fields, one line each.

    log = get_logger("trainer")
    log.info("step committed", step=3, lag=1)

comes out as `2025-01-31T12:00:00.250Z INFO trainer: step committed step=3 lag=1`, or as one JSON object.
ROLLOG_LOG_LEVEL (debug, info, warning, error) and ROLLOG_LOG_FORMAT (text, json) choose what is seen.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rollog.kernel.errors import ConfigError
from rollog.kernel.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_levels = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_root = "rollog"
_plain_characters = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+.,:/@%#()[]{}<>*"
)


class EventLogger:
    """Logs events with fields under one component's name."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        """Something only a developer wants to see."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Something that happened as intended."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something that should be looked at, though the role goes on."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something that ends the role or loses work."""
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, error: BaseException, **fields: object) -> None:
        """An error with its traceback, folded into one line."""
        trace = "".join(traceback.format_exception(error))
        self._log(logging.ERROR, event, {**fields, "error": repr(error), "traceback": trace})

    def _log(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={"event_fields": fields})


class TextFormatter(logging.Formatter):
    """`time LEVEL component: event key=value ...`; values with blanks or line ends are quoted as in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line for one record."""
        head = f"{_timestamp(record.created)} {record.levelname} {_component(record)}: {_event(record)}"
        return " ".join([head, *(f"{key}={_text_value(value)}" for key, value in _fields(record).items())])


class JsonFormatter(logging.Formatter):
    """One JSON object per line; fields are keys beside time, level, component and event."""

    def format(self, record: logging.LogRecord) -> str:
        """One line for one record."""
        entry = {
            **_fields(record),
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "component": _component(record),
            "event": _event(record),
        }
        return json.dumps(entry, default=str)


def get_logger(component: str) -> EventLogger:
    """The logger of one component, for example `dispatcher`."""
    return EventLogger(logging.getLogger(f"{_root}.{component}"))


def configure_logging(
    environment: Mapping[str, str] | None = None, *, stream: TextIO | None = None, level: str | None = None
) -> None:
    """Send rollog's events to `stream` (standard error by default); replaces an earlier configuration.

    Raises ConfigError for an unknown level or format.
    """
    values = os.environ if environment is None else environment
    chosen_level = level or values.get("ROLLOG_LOG_LEVEL") or "info"
    chosen_format = values.get("ROLLOG_LOG_FORMAT") or "text"
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_formatter(chosen_format))
    logger = logging.getLogger(_root)
    logger.handlers[:] = [handler]
    logger.setLevel(_level(chosen_level))
    logger.propagate = False


@contextmanager
def logging_restored() -> Iterator[None]:
    """Leave logging as it was before the block, for a program that rollog is a part of."""
    logger = logging.getLogger(_root)
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def _formatter(name: str) -> logging.Formatter:
    if name == "text":
        return TextFormatter()
    if name == "json":
        return JsonFormatter()
    raise ConfigError(f"ROLLOG_LOG_FORMAT = {name!r} is not known; use text or json")


def _level(name: str) -> int:
    if name.lower() not in _levels:
        raise ConfigError(f"ROLLOG_LOG_LEVEL = {name!r} is not known; use one of {', '.join(_levels)}")
    return _levels[name.lower()]


def _timestamp(created: float) -> str:
    milliseconds = int(created * 1000) % 1000
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(created))}.{milliseconds:03d}Z"


def _component(record: logging.LogRecord) -> str:
    return record.name.removeprefix(f"{_root}.")


def _event(record: logging.LogRecord) -> str:
    return printable(record.getMessage().replace("\n", "\\n"))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = dict(getattr(record, "event_fields", {}))
    if record.exc_info and record.exc_info[0] is not None:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _text_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text and _plain_characters.issuperset(text) else json.dumps(text)
