"""Text: breaking lines, names in several spellings, what two words have in common."""

from __future__ import annotations


def wrapped(text: str, width: int) -> list[str]:
    """The words of the text in lines of at most `width` characters; a longer word has a line of its own."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def snake_case(name: str) -> str:
    """`parseHTTPLine2` becomes `parse_http_line2`: a capital begins a word, several in a row are one word."""
    parts = []
    for index, letter in enumerate(name):
        after_small = index > 0 and not name[index - 1].isupper()
        before_small = index + 1 < len(name) and name[index + 1].islower()
        if index > 0 and letter.isupper() and (after_small or before_small):
            parts.append("_")
        parts.append(letter.lower())
    return "".join(parts)


def common_prefix(words: list[str]) -> str:
    """The longest text that all words begin with."""
    if not words:
        return ""
    first, last = min(words), max(words)
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]


def edit_distance(first: str, second: str) -> int:
    """The fewest letters to put in, take out or replace that make `second` of `first`."""
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first):
        before, row = row, [i + 1]
        for j, other in enumerate(second):
            replaced = before[j] + (0 if letter == other else 1)
            row.append(min(replaced, before[j + 1] + 1, row[j] + 1))
    return row[-1]


def shortened(text: str, length: int) -> str:
    """The text, or its begin and end with `..` between them, `length` >= 4 characters in all; the begin is longer."""
    if len(text) <= length:
        return text
    kept = length - 2
    end = kept // 2
    return text[: kept - end] + ".." + text[len(text) - end :]
