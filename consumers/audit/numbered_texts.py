"""Texts that come again and again, by number: what an audit packs holds the number."""

from __future__ import annotations


class NumberedTexts:
    """Each text once, counted from 0 in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def number(self, text: str) -> int:
        """The number of a text, known or new."""
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        return number

    def __getitem__(self, number: int) -> str:
        return self._texts[number]
