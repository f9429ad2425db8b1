"""Text of untrusted origin does not steer a terminal."""

from __future__ import annotations

import io

import pytest

from rollog.kernel.logs import configure_logging, get_logger
from rollog.kernel.printable import printable, printable_lines

hostile = "a\x1b[2J\x07\x9b\u200b\u200e\u202e\u2066\u2028\ud800b"


def test_what_steers_a_terminal_is_escaped() -> None:
    assert printable(hostile) == "a\\x1b[2J\\x07\\x9b\\u200b\\u200e\\u202e\\u2066\\u2028\\ud800b"


@pytest.mark.parametrize("text", ["", "plain text", "größe 数学 ▁▂", "1 + 1 = 2"])
def test_what_can_be_read_stays(text: str) -> None:
    assert printable(text) == text


def test_long_text_is_cut_and_says_so() -> None:
    assert printable("x" * 50, limit=10) == "xxxxxxxxxx... (50 characters)"


def test_lines_stay_lines() -> None:
    assert printable_lines("a\x1b\nb") == "a\\x1b\nb"


def test_a_log_line_steers_nothing() -> None:
    stream = io.StringIO()
    configure_logging({}, stream=stream)
    get_logger("watch").warning(f"worker {hostile}", worker=hostile)

    line = stream.getvalue()
    assert line.rstrip("\n").isprintable()
