"""What every section of the settings is made of, and what a key says about itself where it is declared.

    learning_rate: Annotated[float, Field(gt=0), AMENDABLE, WEIGHTS] = 3e-4

A key names its scope (where it may change) and, where that matters, what it decides. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from rollog.kernel.addresses import names_secret

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class Scope(Enum):
    """Where a key may change. Each key has exactly one."""

    FIXED = auto()
    """The run keeps the value of its manifest from beginning to end."""
    AMENDABLE = auto()
    """`rollog resume --set` and `rollog train --amend` change it from the next step on, by an amend record."""
    PER_MACHINE = auto()
    """The roles of one run may differ in it; the value of the manifest is what they have without one of their own."""
    SECRET = auto()
    """As `PER_MACHINE`, and never in the manifest, where the key has its default."""


FIXED, AMENDABLE, PER_MACHINE, SECRET = Scope


class Decides(Flag):
    """What a key decides, where something is derived from that. A key may decide several things, or none of these."""

    WHICH_RUN = auto()
    """The run that a command is about: each command says it, no manifest does."""
    WEIGHTS = auto()
    """The weights that recorded samples give: what a replay may ask about."""
    PLAN = auto()
    """How a batch is cut up: with another value a recorded plan does not fit."""
    ENGINE = auto()
    """The training engine that is made: an optimizer's state under one value fits no other."""


WHICH_RUN, WEIGHTS, PLAN, ENGINE = Decides


@dataclass(frozen=True, slots=True)
class Formerly:
    """What a manifest from before a key existed means by leaving it out, where that is not the key's default.

    So a new way to compute is the default of new runs, and a run that began without it goes on, and is replayed, as it
    began.
    """

    value: object


class SecretPart(Enum):
    """Which part of a key's value the manifest leaves out; the key itself is no secret."""

    USER_OF_ADDRESS = auto()
    """`user:password@` of an address, and its parameters that sign it or hold keys."""
    NAMED_ENTRIES = auto()
    """Entries of a table that are named like secrets, however deep, and the same parts of every address in it."""


class Section(BaseModel):
    """Base of all sections: frozen, strict about unknown keys, every key with a scope.

    Making a section raises TypeError where a key has no scope or two, or is named like a secret and is none.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        # The text of an error would hold everything that stands around what is wrong, secrets included.
        hide_input_in_errors=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Check the declarations of a section that was just made."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if _is_section(field):
                continue
            scopes = [mark for mark in field.metadata if isinstance(mark, Scope)]
            if len(scopes) != 1:
                raise TypeError(
                    f"{cls.__name__}.{name} has {len(scopes)} scopes: declare it as Annotated[..., FIXED], AMENDABLE, "
                    "PER_MACHINE or SECRET"
                )
            if names_secret(name) and scopes != [Scope.SECRET]:
                raise TypeError(f"{cls.__name__}.{name} is named like a secret: declare it as SECRET")


def scope_of(field: FieldInfo) -> Scope:
    """The scope of a declared key."""
    (scope,) = (mark for mark in field.metadata if isinstance(mark, Scope))
    return scope


def decided_by(field: FieldInfo) -> Decides:
    """Everything that a declared key decides; falsy for nothing."""
    found = Decides(0)
    for mark in field.metadata:
        if isinstance(mark, Decides):
            found |= mark
    return found


def formerly_of(field: FieldInfo) -> Formerly | None:
    """What a manifest without a declared key means by that, where it is not the default."""
    return next((mark for mark in field.metadata if isinstance(mark, Formerly)), None)


def secret_part_of(field: FieldInfo) -> SecretPart | None:
    """The part of a declared key's value that the manifest leaves out."""
    return next((mark for mark in field.metadata if isinstance(mark, SecretPart)), None)


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)
