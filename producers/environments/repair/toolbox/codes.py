"""Codes: packed text, secret writing, check digits."""

from __future__ import annotations

_letters = "abcdefghijklmnopqrstuvwxyz"


def packed(text: str) -> str:
    """Letters in a row as letter and count: `aaabcc` becomes `a3bc2`; a single one has no count."""
    result = ""
    start = 0
    for index in range(1, len(text) + 1):
        if index == len(text) or text[index] != text[start]:
            count = index - start
            result += text[start] + (str(count) if count > 1 else "")
            start = index
    return result


def unpacked(text: str) -> str:
    """What `packed` made the text of."""
    result = ""
    letter, count = "", ""
    for each in text + " ":
        if each.isdigit():
            count += each
            continue
        result += letter * int(count or "1")
        letter, count = each, ""
    return result


def enciphered(text: str, key: str) -> str:
    """Each small letter moved on in the alphabet by the key's letter (a by 0, b by 1), the key over and over.

    Other characters stay and use up no letter of the key.
    """
    result = ""
    used = 0
    for letter in text:
        if letter not in _letters:
            result += letter
            continue
        move = _letters.index(key[used % len(key)])
        result += _letters[(_letters.index(letter) + move) % 26]
        used += 1
    return result


def has_right_check(digits: str) -> bool:
    """Luhn's check: from the right every second digit doubled, its own digits added up; the sum ends in 0."""
    total = 0
    for index, digit in enumerate(reversed(digits)):
        number = int(digit)
        if index % 2 == 1:
            number *= 2
            if number > 9:
                number -= 9
        total += number
    return total % 10 == 0


def bits(number: int, width: int) -> list[int]:
    """The lowest `width` bits of a number from 0 on, the highest of them first."""
    return [(number >> place) % 2 for place in range(width - 1, -1, -1)]


def rotated(number: int, places: int, width: int) -> int:
    """The lowest `width` bits turned left by 0 to `width` places: what leaves comes in at the right."""
    kept = number % (1 << width)
    moved = kept << places
    return moved % (1 << width) + (moved >> width)
