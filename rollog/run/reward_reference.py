"""A reward function of a script, as other processes find it: by `module:function`, on their search path.

Reward functions run in processes of their own, which import them. So a function must stand in a module, under its name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_remedy = "write it as a function of a module, for example my_rewards.py, and import it from there"
_packages_of_roles = ("rollog", "producers", "consumers", "trainer")


def reward_reference(function: Callable[..., object]) -> str:
    """`module:function` of a function. Raises ConfigError for one that another process could not import."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(f"the reward {function!r} has no name to be imported by; {_remedy}")
    if "<lambda>" in name:
        raise ConfigError(f"the reward is a lambda, which no other process can import; {_remedy}")
    if "." in name:
        raise ConfigError(f"the reward {name} stands within a function or a class; {_remedy}")
    if module == "__main__":
        module = _module_of_script(name)
    found = getattr(sys.modules.get(module), name, None)
    if found is not None and found is not function:
        raise ConfigError(f"{module}:{name} is another object than the reward that was given; {_remedy}")
    return f"{module}:{name}"


def search_path(*references: str | None) -> dict[str, str]:
    """The environment in which a child finds the modules of rewards where this process does, as far as it needs one.

    Children look in the current directory, in PYTHONPATH and in what is installed. A module that this process finds
    elsewhere, beside its script for example, needs its directory on PYTHONPATH. One that is not found needs nothing.
    """
    packages = [(reference or "").partition(":")[0].partition(".")[0] for reference in references]
    directories = [_directory_of(package) for package in packages if package]
    known = os.environ.get("PYTHONPATH", "")
    searched = [Path.cwd(), *(Path(place).resolve() for place in known.split(os.pathsep) if place)]
    missing = [
        str(directory)
        for directory in dict.fromkeys(directories)
        if directory is not None and directory not in searched and not _is_installed(directory)
    ]
    return {"PYTHONPATH": os.pathsep.join([*([known] if known else []), *missing])} if missing else {}


def refuse_within_a_role() -> None:
    """Raise ConfigError where this process is a role or a reward process that only imports the module of a script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.partition(".")[0] in _packages_of_roles:
        raise ConfigError(
            "rollog.up is called while another process imports this module for its reward function; put the call "
            'under `if __name__ == "__main__":`'
        )


def _module_of_script(name: str) -> str:
    """The name under which others import the script that runs."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        raise ConfigError(
            f"the reward {name} is defined in an interactive session or a notebook, which no other process can "
            f"import; {_remedy}"
        )
    path = Path(file).resolve()
    found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    if found is None or found.origin is None or Path(found.origin).resolve() != path:
        raise ConfigError(f"the reward {name} is defined in {path.name}, which cannot be imported; {_remedy}")
    return path.stem


def _directory_of(package: str) -> Path | None:
    """The entry of the search path under which a module or package lies."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    file = places[0] if places else None if spec is None else spec.origin
    return None if file is None or not Path(file).exists() else Path(file).resolve().parent


def _is_installed(directory: Path) -> bool:
    return any(directory.is_relative_to(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix))
