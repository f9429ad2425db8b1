"""Money in whole cents: splitting, rounding, paying, taxing."""

from __future__ import annotations


def split(cents: int, num_parts: int) -> list[int]:
    """So many parts as equal as cents allow; the first ones get a cent more. Works for amounts from 0 on."""
    share, rest = divmod(cents, num_parts)
    return [share + 1 if index < rest else share for index in range(num_parts)]


def rounded(cents: int, step: int) -> int:
    """The amount, from 0 on, as the nearest multiple of `step`; the larger one where both are as near."""
    below = cents // step * step
    return below if 2 * (cents - below) < step else below + step


def fewest_coins(cents: int, coins: list[int]) -> int:
    """The fewest coins of these kinds that make up the amount; -1 where they cannot."""
    fewest = [0] + [-1] * cents
    for amount in range(1, cents + 1):
        ways = [fewest[amount - coin] for coin in coins if coin <= amount and fewest[amount - coin] >= 0]
        if ways:
            fewest[amount] = min(ways) + 1
    return fewest[cents]


def tax(cents: int, brackets: list[list[int]]) -> int:
    """The tax by brackets [from, percent], in rising order: each percent is for what lies from there to the next one.

    Fractions of a cent are dropped at the end.
    """
    hundredths = 0
    for index, (start, percent) in enumerate(brackets):
        end = brackets[index + 1][0] if index + 1 < len(brackets) else cents
        if cents > start:
            hundredths += (min(cents, end) - start) * percent
    return hundredths // 100


def bill(items: list[list[int]], free_from: int, delivery: int) -> int:
    """The sum of items [cents, count, percent off], with delivery unless the sum is `free_from` or more.

    What is taken off an item is rounded down to whole cents.
    """
    total = 0
    for price, count, percent in items:
        amount = price * count
        total += amount - amount * percent // 100
    return total if total >= free_from else total + delivery
