"""What a seed draws: modules of the toolbox, arguments for their functions, and the order of places for a defect."""

from __future__ import annotations

import importlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.environments.repair.defects import possible_defects
from producers.environments.repair.draws import draws
from producers.rewards.code_cases import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from producers.environments.repair.defects import Defect

package = "toolbox"
"""The name of the package in every repository."""

_originals = Path(__file__).with_name(package)
_num_cases = 20
_most_draws = 400


@dataclass(frozen=True, slots=True)
class Case:
    """A call, and what the original gives."""

    call: Call
    expected: Any


@dataclass(frozen=True, slots=True)
class Drawn:
    """All that a seed decides before a defect is tried."""

    modules: tuple[str, ...]
    cases: dict[str, list[Case]]
    """By module; no call comes twice."""
    places: list[tuple[str, Defect]]
    """Modules and defects, in the order in which they are tried."""


def drawn_from(seed: int, modules: Sequence[str], num_modules: int) -> Drawn:
    """The same for equal arguments, on every machine."""
    numbers = random.Random(seed)  # noqa: S311  # a task, no secret
    chosen = tuple(sorted(numbers.sample(sorted(modules), num_modules)))
    cases = {module: list(_cases(module, numbers)) for module in chosen}
    places = [(module, defect) for module in chosen for defect in possible_defects(original(module))]
    numbers.shuffle(places)
    return Drawn(chosen, cases, places)


def original(module: str) -> str:
    """The text of a module without a defect; with "__init__", that of the package."""
    return (_originals / f"{module}.py").read_text(encoding="ascii")


def _cases(module: str, numbers: random.Random) -> Iterator[Case]:
    functions = importlib.import_module(f"{__package__}.{package}.{module}")
    for name, draw in draws[module].items():
        yield from _cases_of(module, name, getattr(functions, name), draw, numbers)


def _cases_of(
    module: str,
    name: str,
    function: Callable[..., Any],
    draw: Callable[[random.Random], list[Any]],
    numbers: random.Random,
) -> Iterator[Case]:
    seen = set()
    for _ in range(_most_draws):
        arguments = draw(numbers)
        text = json.dumps(arguments)
        if text not in seen:
            seen.add(text)
            # The function gets arguments of its own, as the one in the sandbox does.
            yield Case(Call(f"{package}.{module}", name, arguments), function(*json.loads(text)))
        if len(seen) == _num_cases:
            return
