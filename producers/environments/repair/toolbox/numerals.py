"""Numbers as text: Roman, in other bases, in groups of three, in words of time."""

from __future__ import annotations

_roman = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]
_digits = "0123456789abcdefghijklmnopqrstuvwxyz"


def to_roman(number: int) -> str:
    """The Roman numeral of a number from 1 to 3999."""
    text = ""
    for value, letters in _roman:
        text += letters * (number // value)
        number %= value
    return text


def from_roman(text: str) -> int:
    """The number of a Roman numeral."""
    values = {letters: value for value, letters in _roman}
    total = 0
    for letter, following in zip(text, text[1:] + " ", strict=True):
        value = values[letter]
        total += -value if value < values.get(following, 0) else value
    return total


def in_base(number: int, base: int) -> str:
    """The digits of a whole number in a base from 2 to 36, with a minus before a negative one."""
    if number == 0:
        return "0"
    digits = ""
    rest = abs(number)
    while rest > 0:
        digits = _digits[rest % base] + digits
        rest //= base
    return "-" + digits if number < 0 else digits


def grouped(number: int) -> str:
    """`1234567` becomes `1,234,567`."""
    digits = str(abs(number))
    groups = []
    while len(digits) > 3:
        groups.append(digits[-3:])
        digits = digits[:-3]
    groups.append(digits)
    return ("-" if number < 0 else "") + ",".join(reversed(groups))


def duration(seconds: int) -> str:
    """`3725` becomes `1h 2m 5s`; parts of 0 are left out, and no time at all is `0s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    parts = [f"{count}{unit}" for count, unit in ((hours, "h"), (minutes, "m"), (left, "s")) if count]
    return " ".join(parts) or "0s"
