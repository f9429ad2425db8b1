"""What the HTTP server says of errors, without what was sent: paths and headers hold keys of sessions."""

from __future__ import annotations

import logging
import traceback

from aiohttp.http_exceptions import HttpProcessingError


def quiet_logger() -> logging.Logger:
    """For aiohttp: of an error its type and its places, and nothing of a request that is none."""
    logger = logging.getLogger("rollog.endpoint.http")
    if not any(isinstance(each, _WithoutTexts) for each in logger.filters):
        logger.addFilter(_WithoutTexts())
    return logger


class _WithoutTexts(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Take every text out of a record; whether it is told at all."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or isinstance(error, HttpProcessingError):
            return False
        places = "".join(traceback.format_tb(error.__traceback__))
        record.msg, record.args = f"a request failed: {type(error).__name__}\n{places}", ()
        record.exc_info, record.exc_text = None, None
        return True
