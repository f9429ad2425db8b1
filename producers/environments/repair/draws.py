"""Arguments for each function of the toolbox, drawn at random: small, valid, and with the edges among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from producers.environments.repair.toolbox.codes import packed
from producers.environments.repair.toolbox.numerals import to_roman

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

Arguments = list[Any]


def _numbers(random: Random, most: int = 9, low: int = -9, high: int = 9, least: int = 0) -> list[int]:
    return [random.randint(low, high) for _ in range(random.randint(least, most))]


def _rising(random: Random) -> list[int]:
    return sorted(_numbers(random, low=0, high=12))


def _ranges(random: Random) -> list[list[int]]:
    starts = [random.randint(0, 20) for _ in range(random.randint(0, 5))]
    return [[start, start + random.randint(0, 7)] for start in starts]


def _date(random: Random) -> list[int]:
    year = random.choice([random.randint(1, 2400), random.choice([1900, 2000, 2023, 2024, 2100, 4, 400])])
    return [year, random.choice([1, 2, 3, 12, random.randint(1, 12)]), random.choice([1, 28, 15])]


def _grid(random: Random, low: int = 0, high: int = 1) -> list[list[int]]:
    width = random.randint(1, 5)
    return [[random.randint(low, high) for _ in range(width)] for _ in range(random.randint(1, 5))]


def _cell(random: Random) -> Arguments:
    grid = _grid(random)
    return [grid, random.randrange(len(grid)), random.randrange(len(grid[0]))]


def _graph(random: Random, *, without_circles: bool = False) -> tuple[int, list[list[int]]]:
    num_nodes = random.randint(1, 6)
    edges = [[random.randrange(num_nodes), random.randrange(num_nodes)] for _ in range(random.randint(0, 8))]
    if without_circles:
        edges = [[max(edge), min(edge)] for edge in edges if edge[0] != edge[1]]
    return num_nodes, edges


def _word(random: Random, letters: str = "abc", least: int = 0, most: int = 7) -> str:
    return "".join(random.choice(letters) for _ in range(random.randint(least, most)))


def _text(random: Random) -> str:
    return " ".join(_word(random, "abcde", 1, 6) for _ in range(random.randint(0, 9)))


def _words(random: Random) -> list[str]:
    begin = _word(random, "ab")
    return [begin + _word(random, "ab", 0, 3) for _ in range(random.randint(0, 4))]


def _name(random: Random) -> str:
    parts = [random.choice(["parse", "HTTP", "Line", "to", "X", "Id", "JSON", "2", "a"]) for _ in range(3)]
    return "".join(parts)


def _brackets(random: Random) -> str:
    text = random.choice(["()", "[]", "{}"])
    for _ in range(random.randint(0, 4)):
        text = random.choice([f"({text})", f"[{text}]", f"{{{text}}}", f"{text}()", f"[]{text}"])
    if random.random() < 0.5:
        place = random.randrange(len(text))
        text = text[:place] + random.choice(["", "(", "]", "}"]) + text[place + 1 :]
    return text


def _formula(random: Random, depth: int = 3) -> str:
    if depth == 0 or random.random() < 0.25:
        return str(random.choice([random.randint(0, 9), random.randint(10, 120)]))
    left, right = _formula(random, depth - 1), _formula(random, depth - 1)
    text = f"{left} {random.choice('+-*')} {right}"
    return f"({text})" if random.random() < 0.4 else text


def _brackets_of_tax(random: Random) -> list[list[int]]:
    starts = sorted(random.sample(range(0, 3000, 50), random.randint(1, 4)))
    return [[start, random.randint(1, 45)] for start in starts]


def _count_between(random: Random) -> Arguments:
    low = random.randint(0, 12)
    return [_rising(random), low, low + random.randint(-1, 6)]


def _longer(random: Random, width: int) -> Arguments:
    return [random.choice([random.randrange(1 << width), random.randrange(1 << (width + 2))]), width]


def _rotated(random: Random) -> Arguments:
    width = random.randint(1, 8)
    return [random.randrange(1 << (width + 1)), random.randint(0, width), width]


draws: Mapping[str, Mapping[str, Callable[[Random], Arguments]]] = {
    "intervals": {
        "merged": lambda random: [_ranges(random)],
        "covered": lambda random: [_ranges(random)],
        "common": lambda random: [_ranges(random), _ranges(random)],
        "gaps": lambda random: [_ranges(random), random.randint(0, 8), random.randint(8, 26)],
        "most_at_once": lambda random: [_ranges(random)],
    },
    "words": {
        "wrapped": lambda random: [_text(random), random.randint(3, 14)],
        "snake_case": lambda random: [_name(random)],
        "common_prefix": lambda random: [_words(random)],
        "edit_distance": lambda random: [_word(random), _word(random)],
        "shortened": lambda random: [_word(random, "abcdefgh", 2, 14), random.randint(4, 10)],
    },
    "numerals": {
        "to_roman": lambda random: [random.randint(1, 3999)],
        "from_roman": lambda random: [to_roman(random.randint(1, 3999))],
        "in_base": lambda random: [random.randint(-300, 5000), random.choice([2, 3, 8, 10, 16, 36])],
        "grouped": lambda random: [
            random.randint(0, 9) * 10 ** random.randint(0, 9) - random.randint(0, 2000)
        ],
        "duration": lambda random: [random.choice([0, 60, 3600, 86399, 3661, random.randint(0, 100_000)])],
    },
    "days": {
        "is_leap": lambda random: [_date(random)[0]],
        "month_length": lambda random: _date(random)[:2],
        "day_of_year": lambda random: [_date(random)],
        "day_number": lambda random: [_date(random)],
        "weekday": lambda random: [_date(random)],
        "later": lambda random: [_date(random), random.choice([0, 1, 3, 31, random.randint(0, 800)])],
    },
    "grids": {
        "turned": lambda random: [_grid(random, 0, 9)],
        "spiral": lambda random: [_grid(random, 0, 9)],
        "num_neighbours": _cell,
        "next_generation": lambda random: [_grid(random)],
        "largest_area": lambda random: [_grid(random)],
    },
    "graphs": {
        "following": lambda random: [*_graph(random)],
        "distances": lambda random: [*_graph(random), 0],
        "in_order": lambda random: [*_graph(random, without_circles=random.random() < 0.8)],
        "num_parts": lambda random: [*_graph(random)],
        "num_paths": lambda random: [*_graph(random), random.randint(0, 4)],
    },
    "sequences": {
        "chunks": lambda random: [_numbers(random), random.randint(1, 4)],
        "runs": lambda random: [_numbers(random, low=0, high=2)],
        "without_doubles": lambda random: [_numbers(random, low=0, high=3), random.randint(1, 3)],
        "shifted": lambda random: [_numbers(random), random.randint(-12, 12)],
        "longest_rise": lambda random: [_numbers(random)],
        "best_stretch": lambda random: [_numbers(random)],
    },
    "divisors": {
        "common_divisor": lambda random: [
            random.randint(-60, 60),
            random.choice([0, random.randint(-60, 60)]),
        ],
        "primes_below": lambda random: [random.randint(0, 60)],
        "prime_factors": lambda random: [random.choice([1, 4, 49, 64, random.randint(1, 900)])],
        "num_divisors": lambda random: [random.randint(1, 400)],
        "num_choices": lambda random: [random.randint(0, 12), random.randint(-1, 13)],
        "power_rest": lambda random: [random.randint(-9, 20), random.randint(0, 30), random.randint(1, 40)],
    },
    "prices": {
        "split": lambda random: [random.randint(0, 500), random.randint(1, 7)],
        "rounded": lambda random: [random.randint(0, 300), random.choice([5, 10, 25, 100, 4])],
        "fewest_coins": lambda random: [
            random.randint(0, 60),
            random.choice([[1, 5, 10], [2, 7], [1, 3, 4], [5, 9]]),
        ],
        "tax": lambda random: [random.randint(0, 4000), _brackets_of_tax(random)],
        "bill": lambda random: [
            [
                [random.randint(50, 900), random.randint(1, 4), random.choice([0, 0, 5, 15, 33])]
                for _ in range(random.randint(0, 4))
            ],
            random.choice([1000, 2000, 0]),
            random.randint(100, 500),
        ],
    },
    "scores": {
        "doubled_median": lambda random: [_numbers(random, least=1)],
        "most_frequent": lambda random: [_numbers(random, low=0, high=3)],
        "ranks": lambda random: [_numbers(random, low=0, high=5)],
        "moving_sums": lambda random: [_numbers(random), random.randint(1, 4)],
        "percentile": lambda random: [_numbers(random, least=1), random.choice([1, 25, 50, 90, 100])],
        "histogram": lambda random: [
            _numbers(random, most=12),
            random.randint(-9, 0),
            random.randint(1, 4),
            random.randint(1, 4),
        ],
    },
    "searches": {
        "insert_place": lambda random: [_rising(random), random.randint(-1, 13)],
        "count_between": _count_between,
        "woven": lambda random: [_rising(random), _rising(random)],
        "pairs_with_sum": lambda random: [_numbers(random, low=0, high=6), random.randint(2, 10)],
        "longest_common": lambda random: [_numbers(random, low=0, high=3), _numbers(random, low=0, high=3)],
        "peak_places": lambda random: [_numbers(random, low=0, high=5)],
    },
    "formulas": {
        "is_balanced": lambda random: [_brackets(random)],
        "deepest": lambda random: [_formula(random)],
        "tokens": lambda random: [_formula(random)],
        "postfix": lambda random: [_formula(random)],
        "value": lambda random: [_formula(random)],
    },
    "codes": {
        "packed": lambda random: [_word(random, "ab", 0, 9)],
        "unpacked": lambda random: [packed(_word(random, "ab", 0, 12))],
        "enciphered": lambda random: [_text(random), _word(random, "abcxyz", 1, 4)],
        "has_right_check": lambda random: [_word(random, "0123456789", 1, 8)],
        "bits": lambda random: _longer(random, random.randint(1, 8)),
        "rotated": _rotated,
    },
}
"""By module and function."""
