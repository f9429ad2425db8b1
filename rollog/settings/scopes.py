"""What follows from the scopes that keys declare: which keys may be amended, set per machine, asked about in a replay.

Every set here is read off the declarations in the sections; nothing is listed twice.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rollog.settings.section import Decides, Scope, decided_by, scope_of
from rollog.settings.settings import Settings, section_class
from rollog.settings.sources import split_assignment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic.fields import FieldInfo

_local = (Scope.PER_MACHINE, Scope.SECRET)


@cache
def declared_keys() -> Mapping[str, FieldInfo]:
    """Every key of every section, by dotted name, in the order of declaration."""
    return {
        f"{section}.{key}": field
        for section in Settings.model_fields
        for key, field in section_class(section).model_fields.items()
    }


def keys_of_scope(*scopes: Scope) -> frozenset[str]:
    """Dotted keys declared with one of these scopes."""
    return frozenset(key for key, field in declared_keys().items() if scope_of(field) in scopes)


def keys_that_decide(what: Decides) -> frozenset[str]:
    """Dotted keys declared to decide `what`."""
    return frozenset(key for key, field in declared_keys().items() if decided_by(field) & what)


amendable_keys = keys_of_scope(Scope.AMENDABLE)
"""What may change while a run goes on: only the trainer acts on it, or everybody reads it in the ledger."""

local_keys = keys_of_scope(*_local)
"""What the roles of one run may differ in."""

training_keys = keys_that_decide(Decides.WEIGHTS)
"""What decides about the weights that recorded samples give: what a replay may ask about."""

planning_keys = keys_that_decide(Decides.PLAN)
"""What decides how a batch is cut up."""

engine_keys = keys_that_decide(Decides.ENGINE)
"""What another engine is made with: weights depend on it, and an optimizer's state under one fits no other."""

_naming_keys = keys_that_decide(Decides.WHICH_RUN)


def is_local(path: Sequence[str]) -> bool:
    """Whether a setting may differ between the roles of one run.

    `path` may go on below the key, into a table. An unknown key of a section that is local as a whole counts as local,
    so that whoever reads it next refuses it by its name.
    """
    section, key = path[0], ".".join(path[:2])
    if key in declared_keys():
        return key in local_keys
    return section in Settings.model_fields and all(
        scope_of(field) in _local for field in section_class(section).model_fields.values()
    )


def names_the_run(path: Sequence[str]) -> bool:
    """Whether a setting says which run is meant."""
    return ".".join(path[:2]) in _naming_keys


def belongs_to_the_run(path: Sequence[str]) -> bool:
    """Whether a setting is one of the manifest's that all roles share."""
    return not is_local(path) and not names_the_run(path)


def shared_out(assignments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`section.key=value` assignments of this machine (or that name the run), and those of the run."""
    of_the_run = tuple(each for each in assignments if belongs_to_the_run(split_assignment(each)[0]))
    return tuple(each for each in assignments if each not in of_the_run), of_the_run
