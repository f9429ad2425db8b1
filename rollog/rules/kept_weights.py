"""Which versions of the weights a run keeps by themselves: a rule without a store and without a clock.

| kept | why |
| --- | --- |
| version 0 | every step can be done again from there |
| the newest N, and as many before them as samples may lag behind | workers, and whoever verifies the newest steps |
| every k-th | by wish |
| those of complete checkpoints | a restart compares what it loaded with them |
| the newest that is evaluated | workers may still have to load it for its evaluation |
| those that a slow reader may be at | superseded for less than the time of grace |

What one of these is stored as changes of stays as well, to the full form: `NamedWeights.with_bases`, which knows the
notices, adds it. Worked example: N = 2, alpha 1, every 4th, a checkpoint of 5, version 11 the newest.

    0   4   5   8   9   10   11      9 for the lag, 8 because it is every 4th
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingRule:
    """What a run asks for. `newest` 0 keeps all; `every` 0 and `evaluated_every` 0 name no version by themselves."""

    newest: int = 0
    every: int = 0
    evaluated_every: int = 0
    """Steps between evaluations."""

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever pruned."""
        return self.newest == 0


def kept_versions(
    stored: Collection[int],
    rule: KeepingRule,
    *,
    lag: int = 0,
    checkpoints: Collection[int] = (),
    young: Collection[int] = (),
) -> set[int]:
    """Those of the `stored` versions that stay by themselves.

    `lag` is how many versions behind the newest samples may be, `young` are those superseded for less than the time of
    grace.
    """
    found = set(stored)
    if rule.keeps_all or not found:
        return found
    newest = max(found)
    evaluated = newest - newest % rule.evaluated_every if rule.evaluated_every else newest
    named = {0, evaluated, *checkpoints, *young}
    return {
        version
        for version in found
        if version in named
        or version > newest - rule.newest - lag
        or (rule.every and version % rule.every == 0)
    }
