"""Text of untrusted origin, made fit for a terminal and a log.

Records come from anywhere: the name of a worker or an error's text may hold sequences that steer a terminal, hide text
or turn its direction round.

An escape character comes out as its backslash, x and two digits, a mark of direction as backslash, u and four.
"""

from __future__ import annotations

max_characters = 10_000


def printable(text: str, *, limit: int = max_characters) -> str:
    """`text` on one line, with everything but visible characters and blanks as an escape, cut after `limit` characters.

    Escaped are controls (C0, C1), marks of direction, characters without width, line and paragraph separators, blanks
    other than the plain one, lone surrogates and code points without a character (Unicode categories C and Z).
    """
    shown = text[:limit]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else _escaped(each) for each in shown)
    return shown if len(text) <= limit else f"{shown}... ({len(text)} characters)"


def printable_lines(text: str, *, limit: int = max_characters) -> str:
    """The same for a text of several lines, which keeps its line feeds."""
    cut = text[:limit]
    shown = "\n".join(printable(line) for line in cut.split("\n"))
    return shown if len(text) <= limit else f"{shown}... ({len(text)} characters)"


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - what two hexadecimal digits hold
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - four digits
