"""Versions of low-rank adapters: what their content says beside the tensors, and how their tensors are called.

A version of an adapter run holds the tensors of the model that the run began with, which never change, and beside each
adapted layer its two matrices. The model that it stands for has, in these layers,

    y = W x + scaling B A x       A: (rank, inputs), B: (outputs, rank)

| tensor | name |
| --- | --- |
| weight and bias of a layer | as in the model, `LAYER.weight` |
| A, B | `LAYER.lora_A.weight`, `LAYER.lora_B.weight` |

Whoever cannot compute that merges: `W + scaling B A` in float32, rounded once. In bfloat16 most of a small adapter is
lost by that rounding, so an engine applies the matrices beside the layer where it can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

first_suffix = ".lora_A.weight"
second_suffix = ".lora_B.weight"
rules = ("linear", "transposed")
"""`transposed`: the layer keeps its weight as (inputs, outputs), as GPT-2 does, and merging adds (B A) transposed."""
_most_rank = 65_536
_most_targets = 1_000_000
_keys = {"rank", "rule", "scaling", "targets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What an engine has to know of the adapters of a version. `targets` are the names of layers, sorted."""

    rank: int
    scaling: float
    targets: tuple[str, ...]
    rule: str = "linear"

    def as_json(self) -> dict[str, Any]:
        """What stands in the content of a version."""
        return {
            "rank": self.rank,
            "rule": self.rule,
            "scaling": self.scaling,
            "targets": list(self.targets),
        }

    @property
    def tensor_names(self) -> set[str]:
        """Of all matrices."""
        return {name for layer in self.targets for name in matrix_names(layer)}


def matrix_names(layer: str) -> tuple[str, str]:
    """Of A and B of a layer."""
    return layer + first_suffix, layer + second_suffix


def adapter_in(value: Any) -> Adapter | None:
    """The adapter in the content of a version, None where there is none. Raises ValueError for what can be none."""
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != _keys:
        raise ValueError(f"an object with {', '.join(sorted(_keys))} is needed")
    rank, scaling, targets, rule = (value[key] for key in ("rank", "scaling", "targets", "rule"))
    if type(rank) is not int or not 0 < rank <= _most_rank:
        raise ValueError(f"its rank is {rank!r:.80}, a number from 1 to {_most_rank} is needed")
    if type(scaling) is not float or not math.isfinite(scaling):
        raise ValueError(f"its scaling is {scaling!r:.80}, a finite number is needed")
    if rule not in rules:
        raise ValueError(f"its rule is {rule!r:.80}, one of {', '.join(rules)} is needed")
    if (
        not isinstance(targets, list)
        or not 0 < len(targets) <= _most_targets
        or not all(isinstance(layer, str) and layer for layer in targets)
        or targets != sorted(set(targets))
    ):
        raise ValueError("its targets are no sorted list of layers")
    return Adapter(rank=rank, scaling=scaling, targets=tuple(targets), rule=rule)
