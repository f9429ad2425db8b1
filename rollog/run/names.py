"""Names of runs: made up when none is given, checked when one is."""

from __future__ import annotations

import re
import secrets

from rollog.kernel.errors import ConfigError
from rollog.settings.run import run_name_pattern

_moods: tuple[str, ...]
_animals: tuple[str, ...]
# fmt: off
_moods = (
    "amber", "bold", "brave", "bright", "brisk", "calm", "clear", "clever", "cosy", "deft", "eager",
    "early", "fair", "fleet", "fresh", "gentle", "glad", "keen", "kind", "light", "lively", "lucky",
    "mellow", "merry", "mild", "neat", "nimble", "patient", "placid", "plain", "proud", "quick",
    "quiet", "ready", "rapid", "sharp", "shy", "silent", "sleek", "smart", "snug", "solid",
    "steady", "still", "sunny", "swift", "tidy", "warm", "wise", "witty",
)
_animals = (
    "adder", "badger", "beaver", "bison", "crane", "curlew", "dipper", "dove", "eider", "ermine",
    "falcon", "ferret", "finch", "fox", "gannet", "grebe", "hare", "heron", "ibex", "ibis",
    "jackdaw", "jay", "kestrel", "kite", "lark", "linnet", "lynx", "marten", "merlin", "mole",
    "newt", "otter", "owl", "petrel", "plover", "quail", "raven", "robin", "seal", "shrew",
    "siskin", "sparrow", "stoat", "stork", "swan", "teal", "tern", "thrush", "viper", "vole",
    "wren",
)
# fmt: on


def made_up_name() -> str:
    """A name such as `calm-otter-0421`."""
    return f"{secrets.choice(_moods)}-{secrets.choice(_animals)}-{secrets.randbelow(10_000):04d}"


def is_name(name: str) -> bool:
    """Whether it can be part of a topic's name and of a path."""
    return re.fullmatch(run_name_pattern.strip("^$"), name) is not None


def checked_name(name: str) -> str:
    """The name itself. Raises ConfigError when it cannot be part of a topic's name."""
    if not is_name(name):
        raise ConfigError(
            f"run name {name!r} is malformed; use 1 to 48 of the characters a-z, 0-9 and -, "
            "for example calm-otter-0421"
        )
    return name
