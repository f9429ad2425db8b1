"""Structured logging."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.errors import ConfigError
from rollog.kernel.logs import configure_logging, get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    logger = logging.getLogger("rollog")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def an_error() -> ValueError:
    try:
        int("wrong")
    except ValueError as error:
        return error
    raise AssertionError


def lines_of(environment: dict[str, str], **fields: object) -> list[str]:
    stream = io.StringIO()
    configure_logging(environment, stream=stream)
    log = get_logger("trainer")
    log.debug("polled")
    log.info("step committed", **fields)
    return stream.getvalue().splitlines()


def test_an_event_is_one_line_with_its_fields() -> None:
    (line,) = lines_of({}, step=3, loss=0.125, run="calm-otter")

    assert line.endswith(" INFO trainer: step committed step=3 loss=0.125 run=calm-otter")


def test_a_value_with_line_ends_stays_on_its_line() -> None:
    (line,) = lines_of({}, message='two\nlines and "quotes"', nothing="")

    assert line.endswith(r'message="two\nlines and \"quotes\"" nothing=""')


def test_json_lines_hold_the_same() -> None:
    (line,) = lines_of({"ROLLOG_LOG_FORMAT": "json"}, step=3, place={"partition": 1})

    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "component": "trainer",
        "event": "step committed",
        "step": 3,
        "place": {"partition": 1},
    }


def test_the_level_comes_from_the_environment() -> None:
    assert len(lines_of({"ROLLOG_LOG_LEVEL": "debug"})) == 2
    assert lines_of({"ROLLOG_LOG_LEVEL": "WARNING"}) == []


@pytest.mark.parametrize("name", ["ROLLOG_LOG_LEVEL", "ROLLOG_LOG_FORMAT"])
def test_an_unknown_level_or_format_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} = 'loud'"):
        lines_of({name: "loud"})


def test_an_exception_keeps_its_traceback_on_one_line() -> None:
    stream = io.StringIO()
    configure_logging({}, stream=stream)
    get_logger("rollout").exception("reward failed", an_error(), task="0.1")

    (line,) = stream.getvalue().splitlines()
    assert 'task=0.1 error="ValueError(' in line
    assert "Traceback" in line


def test_a_foreign_exception_record_stays_on_one_line_too() -> None:
    stream = io.StringIO()
    configure_logging({}, stream=stream)
    logging.getLogger("rollog.other").error("failed\nbadly", exc_info=an_error())

    (line,) = stream.getvalue().splitlines()
    assert r"failed\nbadly traceback=" in line
