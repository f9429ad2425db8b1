"""Whole numbers: what divides them, how many ways there are."""

from __future__ import annotations


def common_divisor(first: int, second: int) -> int:
    """The largest number that divides both; 0 where both are 0."""
    while second != 0:
        first, second = second, first % second
    return abs(first)


def primes_below(limit: int) -> list[int]:
    """The primes smaller than `limit`."""
    is_prime = [True] * max(limit, 2)
    is_prime[0] = is_prime[1] = False
    for number in range(2, limit):
        if is_prime[number]:
            for multiple in range(number * number, limit, number):
                is_prime[multiple] = False
    return [number for number in range(2, limit) if is_prime[number]]


def prime_factors(number: int) -> list[list[int]]:
    """[prime, how often] for each prime that divides a number from 1 on, the smallest first."""
    result = []
    factor = 2
    while factor * factor <= number:
        count = 0
        while number % factor == 0:
            number //= factor
            count += 1
        if count > 0:
            result.append([factor, count])
        factor += 1
    if number > 1:
        result.append([number, 1])
    return result


def num_divisors(number: int) -> int:
    """How many numbers divide a number from 1 on."""
    product = 1
    for _, count in prime_factors(number):
        product *= count + 1
    return product


def num_choices(count: int, chosen: int) -> int:
    """In how many ways `chosen` things can be taken out of `count`."""
    if not 0 <= chosen <= count:
        return 0
    result = 1
    for step in range(min(chosen, count - chosen)):
        result = result * (count - step) // (step + 1)
    return result


def power_rest(base: int, exponent: int, divisor: int) -> int:
    """What is left of base to the power of exponent >= 0 when it is divided by a divisor from 1 on."""
    result = 1 % divisor
    square = base % divisor
    while exponent > 0:
        if exponent % 2 == 1:
            result = result * square % divisor
        square = square * square % divisor
        exponent //= 2
    return result
