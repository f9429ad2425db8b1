"""Days of the Gregorian calendar, each a list [year, month, day], years 1 and later."""

from __future__ import annotations

_lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year: int) -> bool:
    """Whether the year has a 29th of February: every fourth, of the hundreds only every fourth."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def month_length(year: int, month: int) -> int:
    """How many days the month has; January is 1."""
    return _lengths[month - 1] + (1 if month == 2 and is_leap(year) else 0)


def day_of_year(date: list[int]) -> int:
    """1 for the first of January."""
    year, month, day = date
    return sum(month_length(year, each) for each in range(1, month)) + day


def day_number(date: list[int]) -> int:
    """Days from the first of January of year 1, which is number 0."""
    before = date[0] - 1
    return 365 * before + before // 4 - before // 100 + before // 400 + day_of_year(date) - 1


def weekday(date: list[int]) -> str:
    """The first two letters of the day's name; the first of January of year 1 was a Monday."""
    return ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"][day_number(date) % 7]


def later(date: list[int], num_days: int) -> list[int]:
    """The date `num_days` >= 0 days after."""
    year, month, day = date
    day += num_days
    while day > month_length(year, month):
        day -= month_length(year, month)
        month += 1
        if month > 12:
            year, month = year + 1, 1
    return [year, month, day]
