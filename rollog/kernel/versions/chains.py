"""Which form a version is stored in, and which forms a reader needs: rules without a store and without a clock.

A version is a number with a content digest. It is stored in one or more forms: full, or a patch of an earlier version.
A chain is one full form and the patches after it.

    version    0      1  ...  14     15     16           17     18
    form       full   patch   patch  patch  patch        patch  patch
                                            patch of 0

A reader that has 15 takes one patch for each version. One that has nothing, or 14, takes for 18 the full form of 0 and
three patches: 16 as the changes since 0, which the patch of 17 is based on, 17 and 18.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from rollog.kernel.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

default_full_every = 256
cumulative_every = 16
"""A reader that has nothing needs one full form and at most so many patches."""


class VersionPair(NamedTuple):
    """What a version is: its number, and the digest of its tensors in hexadecimal digits."""

    version: int
    digest: str

    def __str__(self) -> str:
        return f"version {self.version} ({self.digest[:16]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredForm:
    """One way in which a version is stored, as its notice tells. `name` is that of its manifest."""

    pair: VersionPair
    name: str
    stored_bytes: int
    base: VersionPair | None = None
    """What a patch is applied to; None for a full form."""


class WhyFull(StrEnum):
    """Why a version is stored in full."""

    FIRST = "it is version 0"
    REBASE = "the run was rebased"
    PERIOD = "it is one of every so many"
    LOST_BASE = "there is no chain to its base"
    OUTGROWN = "the patches since the last full form have more than half of its bytes"


def why_full(
    version: int,
    chain: Sequence[StoredForm] | None,
    *,
    full_every: int = default_full_every,
    is_rebase: bool = False,
    patch_bytes: int = 0,
) -> WhyFull | None:
    """Why `version` is stored in full; None where it is a patch.

    `chain` rebuilds its base, full form first; None where the base cannot be rebuilt, or its tensors are not at hand.
    Ask before the patch is made, and with its `patch_bytes` once they are known.
    """
    if version == 0:
        return WhyFull.FIRST
    if is_rebase:
        return WhyFull.REBASE
    if not chain:
        return WhyFull.LOST_BASE
    full, *patches = chain
    # The second condition counts where `full_every` became smaller within a run.
    if version % full_every == 0 or len(patches) + 1 >= full_every:
        return WhyFull.PERIOD
    if 2 * (sum(patch.stored_bytes for patch in patches) + patch_bytes) > full.stored_bytes:
        return WhyFull.OUTGROWN
    return None


def is_cumulative_due(version: int, chain: Sequence[StoredForm], *, every: int = cumulative_every) -> bool:
    """Whether `version`, stored as a patch of what `chain` makes, is stored as changes since its full form as well."""
    return version % every == 0 and len(chain) > 1


def route(
    forms: Iterable[StoredForm], target: VersionPair, have: VersionPair | None = None
) -> list[StoredForm]:
    """The forms that lead to `target`, in the order in which they are applied; none where `have` is `target`.

    `forms` are those that are stored, in the order of their notices; of several alike the last one counts. From `have`
    a chain of patches is taken where one leads there. Otherwise, and without `have`, the newest full form comes first.

    Raises WeightsError where nothing leads to `target`, and for a patch whose base is not lower.
    """
    known = _Forms(forms)
    if have is not None and (patches := known.patches_between(have, target)) is not None:
        return patches
    return known.from_full(target)


class _Forms:
    """The newest full form and the newest patch of every version."""

    def __init__(self, forms: Iterable[StoredForm]) -> None:
        self._full: dict[VersionPair, StoredForm] = {}
        self._patches: dict[VersionPair, StoredForm] = {}
        for form in forms:
            (self._full if form.base is None else self._patches)[form.pair] = form

    def patches_between(self, have: VersionPair, target: VersionPair) -> list[StoredForm] | None:
        """Patches from `have` to `target`; None where no chain of them leads there."""
        found: list[StoredForm] = []
        pair = target
        while pair != have:
            patch = self._patches.get(pair)
            if patch is None or pair.version <= have.version:
                return None
            found.append(patch)
            pair = _lower_base(patch)
        return found[::-1]

    def from_full(self, target: VersionPair) -> list[StoredForm]:
        """The newest full form that leads to `target`, and the patches since."""
        found: list[StoredForm] = []
        pair = target
        while (full := self._full.get(pair)) is None:
            patch = self._patches.get(pair)
            if patch is None:
                raise WeightsError(
                    f"the weights of {target} cannot be rebuilt: no form of {pair} is stored; load another version, or "
                    "have the trainer publish this one again"
                )
            found.append(patch)
            pair = _lower_base(patch)
        return [full, *found[::-1]]


def _lower_base(patch: StoredForm) -> VersionPair:
    """The base of a patch. Raises WeightsError where it is not lower than what the patch makes: chains end."""
    assert patch.base is not None
    if patch.base.version >= patch.pair.version:
        raise WeightsError(
            f"the patch {patch.name!r} of {patch.pair} names {patch.base} as its base, which is not lower; the patch "
            "is refused: load a full form of the version"
        )
    return patch.base
