"""Text from records, for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without what could steer a terminal: records come from anywhere."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
