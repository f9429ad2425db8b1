"""Where a run was trained and where it is trained again: what results depend on, compared.

A fact that genesis does not hold, because an earlier version of rollog wrote it, is neither equal nor different: nobody
is accused for what is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.ledger.records import machine, own_versions
from trainer.model.arithmetic import pinned_fact, processor_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas import Genesis
    from trainer.engines.ports import EngineDescription

_same_versions = "machine type and versions are those of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentComparison:
    """What differs, name to (then, here), and the names of facts that genesis does not hold."""

    differences: Mapping[str, tuple[str, str]]
    not_recorded: tuple[str, ...] = ()

    @property
    def named_differences(self) -> str:
        """What differs, for a message; empty where nothing is known to."""
        return "; ".join(f"{name} was {then}, is {now}" for name, (then, now) in self.differences.items())

    @property
    def cause(self) -> str:
        """Why steps may come out otherwise here, or what it means that nothing here says so."""
        if self.differences:
            return f"this is not where the run began ({self.named_differences}), so steps may differ"
        if self.not_recorded:
            return (
                f"{_same_versions} as far as it recorded them, but not its {', '.join(self.not_recorded)}: on another "
                "processor steps differ, so this shows nothing; replay it where it was trained"
            )
        return f"{_same_versions}, so the ledger or the samples may have been changed"


def compare_environment(genesis: Genesis, here: EngineDescription) -> EnvironmentComparison:
    """What results depend on, as it was when the run began and as it is here."""
    then = {
        pinned_fact: "machine",  # what a run did before there was a choice
        "machine": genesis.machine,
        "ranks": str(genesis.world_size),
        "ZeRO stage": str(genesis.zero_stage),
        "dtype": genesis.dtype,
        **genesis.versions,
    }
    now = {
        "machine": machine(here),
        "ranks": str(here.world_size),
        "ZeRO stage": str(here.zero_stage),
        "dtype": here.dtype,
        **own_versions(),
        **here.versions,
    }
    # With the same instructions pinned any processor that has them gives the same bits.
    is_pinned = then[pinned_fact] == now.get(pinned_fact) != "machine"
    relevant = [name for name in now if not (is_pinned and name in processor_facts)]
    return EnvironmentComparison(
        differences={
            name: (then[name], now[name]) for name in relevant if name in then and then[name] != now[name]
        },
        not_recorded=tuple(name for name in relevant if name not in then),
    )
