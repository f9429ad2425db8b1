"""Notices of versions, before anything is read of their files: one that leads nowhere, or elsewhere, is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.manifest import manifest_name, version_of

if TYPE_CHECKING:
    from schemas.weights import WeightVersion

file_name = re.compile(r"v\d{6,9}-[0-9a-f]{16}\.safetensors")
"""Of a version that is one file."""


def weights_name(version: int, sha256: str) -> str:
    """File name of a version whose one file has this sha256."""
    return f"v{version:06d}-{sha256[:16]}.safetensors"


def check_notice(notice: WeightVersion) -> None:
    """Raise WeightsError for a notice that leads nowhere, or somewhere else."""
    match notice.format:
        case "safetensors":
            _check_file_notice(notice)
        case "manifest-1":
            _check_manifest_notice(notice)
        case _:
            raise WeightsError(
                f"weights {notice.name} of version {notice.version} have the format {notice.format!r}; this release of "
                "rollog reads safetensors and manifest-1: use the release that the run was begun with, or a later one"
            )


def _check_file_notice(notice: WeightVersion) -> None:
    if not file_name.fullmatch(notice.name):
        raise WeightsError(bad_name(notice.name))
    expected = weights_name(notice.version, notice.sha256)
    if notice.name != expected:
        raise WeightsError(
            f"weights notice of version {notice.version} names {notice.name}, but version and sha256 make "
            f"{expected}; the notice is refused"
        )


def _check_manifest_notice(notice: WeightVersion) -> None:
    if not manifest_name.fullmatch(notice.name):
        raise WeightsError(
            f"{notice.name!r} is no name of a manifest; expected v000000-0123456789abcdef.manifest"
        )
    if version_of(notice.name) != notice.version:
        raise WeightsError(
            f"weights notice of version {notice.version} names {notice.name}, which is of another version; the notice "
            "is refused"
        )
    if notice.base is not None and notice.base.version >= notice.version:
        raise WeightsError(
            f"weights {notice.name} are stored as changes since version {notice.base.version}, which is not lower than "
            f"{notice.version}; the notice is refused"
        )


def bad_name(name: str) -> str:
    """What is wrong with a name."""
    return f"{name!r} is no name of a weights file; expected v000000-0123456789abcdef.safetensors"
