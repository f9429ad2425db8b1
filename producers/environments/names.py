"""The environments that have a name, and the finding of those that have none.

Only the standard library is imported here; an adapter and its package are imported when its environment is made.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from producers.environments.ports import Environment

_adapters = "producers.environments.adapters"

environments: Mapping[str, str] = {
    "guess_number": f"{_adapters}.guess_number:GuessNumber",
    "nim": f"{_adapters}.nim:Nim",
    "reasoning_gym": f"{_adapters}.reasoning_gym_items:ReasoningGymItem",
    "gymnasium": f"{_adapters}.gymnasium_text:GymnasiumText",
    "textarena": f"{_adapters}.textarena_games:TextArenaGame",
    "textworld": f"{_adapters}.textworld_games:TextWorldGame",
    "openenv": f"{_adapters}.openenv_sessions:OpenEnvSession",
    "repository_repair": f"{_adapters}.repository_repair:RepositoryRepair",
    "household": f"{_adapters}.household:Household",
}
"""Name to `module:factory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """Which environment to make.

    `environment` is one of the names above or the user's own `module:factory`; `parameters` (a JSON object) are the
    factory's keyword arguments; `python` is the interpreter that runs it, by default the one that runs rollog.
    """

    environment: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None


def make_environment(name: str, parameters: Mapping[str, Any]) -> Environment:
    """A new instance. Raises ValueError for a name that nothing has, and whatever its factory raises."""
    factory = _factory(name)
    environment: Environment = factory(**parameters)
    missing = [part for part in ("declaration", "reset", "step", "close") if not hasattr(environment, part)]
    if missing:
        raise ValueError(
            f"environment = {name!r} gave an object of type {type(environment).__name__}, "
            f"which lacks {', '.join(missing)}"
        )
    return environment


def _factory(name: str) -> Callable[..., Any]:
    module_name, colon, attribute = environments.get(name, name).partition(":")
    if not colon:
        raise ValueError(
            f"environment = {name!r} is no name of an environment ({', '.join(environments)}); "
            "your own is given as module:factory"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"environment = {name!r} cannot be imported by {sys.executable}: {error}; install what it needs there, or "
            "name an interpreter that has it with `python`"
        ) from error
    if not callable(factory):
        raise ValueError(f"environment = {name!r} is not callable, but {type(factory).__name__}")
    return factory  # type: ignore[no-any-return]  # getattr knows no type
