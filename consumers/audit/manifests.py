"""The register of runs, compared with genesis: whoever can write to it can send a run's readers elsewhere."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from consumers.audit.findings import Missing, Place
from rollog.kernel.broker.topics import runs_topic
from rollog.kernel.runs import manifests_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumers.audit.findings import Check
    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.kernel.runs import RegisteredManifest
    from schemas import Genesis, RunManifest


def check_manifests(
    broker: Broker, topics: RunTopics, genesis: Genesis | None, check: Check
) -> Iterator[Missing]:
    """Every manifest that stands under the name of the run has the configuration of genesis."""
    registered = manifests_of(broker, topics.prefix, topics.run)
    register = runs_topic(topics.prefix)
    if not registered:
        return  # a note says so: the register is no topic of the run, and who copies the run's alone has none
    if genesis is None:
        yield Missing(
            what="genesis",
            consequence=f"manifests in {register} are compared with the sha256 that they name themselves, which "
            "whoever writes a manifest can make fit",
        )
    wanted = None if genesis is None else _sha256(genesis.manifest_json)
    is_there = any(_is_as_begun(each.manifest, wanted) for each in registered)
    for each in registered:
        check.num_checked += 1
        if not _is_as_begun(each.manifest, wanted):
            _report(
                each,
                wanted,
                check,
                Place(register, 0, each.offset),
                _consequence(registered, is_there=is_there),
            )


def _report(
    registered: RegisteredManifest, wanted: str | None, check: Check, place: Place, consequence: str
) -> None:
    manifest = registered.manifest
    own = _sha256(manifest.config_json)
    if wanted is None:
        message = "the manifest does not have the sha256 that it names: it was altered"
        check.find(message, place=place, record_id=manifest.run, expected=manifest.config_sha256, found=own)
        return
    said = "" if own == manifest.config_sha256 else f" (it names {manifest.config_sha256!r})"
    check.find(
        f"the configuration of this manifest is not the one in genesis: {consequence}",
        place=place,
        record_id=manifest.run,
        expected=wanted,
        found=f"{own}{said}",
    )


def _consequence(registered: Sequence[RegisteredManifest], *, is_there: bool) -> str:
    if is_there:
        return "readers pass it over, the run's own is there, too"
    many = "none of them is" if len(registered) > 1 else "the run's own is not there"
    return (
        f"{many}. Settings and weights store are those of genesis; which version of rollog created the run and when "
        "cannot be checked, and all other commands refuse the run"
    )


def _is_as_begun(manifest: RunManifest, wanted: str | None) -> bool:
    own = _sha256(manifest.config_json)
    return manifest.config_sha256 == own and wanted in (None, own)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
