"""Which manifest of a run counts: the one whose configuration stands in genesis.

Anybody who may write to `<prefix>.runs` can put a second manifest there, under the name of a run, that sends roles to
another weights store. The trainer copies the configuration into genesis, the first record of the hash chain:

    register, offset 3   config_sha256 aa..   the run's
    register, offset 9   config_sha256 bb..   forged: ignored, and named in the log
    genesis              sha256(manifest_json) = aa..

Before genesis nothing but the manifest's own `config_sha256` is there to compare with.

A manifest under one name with the configuration of another run, a copy say, would lead to that run's files: it is
refused. One in the register of another prefix than its own is passed over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consumers.ledger import StoredLedger
from rollog.kernel.broker.topics import RunTopics, runs_topic
from rollog.kernel.errors import ConfigError, LedgerError
from rollog.kernel.logs import get_logger
from rollog.kernel.runs import manifests_of
from rollog.settings.settings import Settings, config_sha256
from schemas import Genesis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.broker.ports import Broker
    from rollog.kernel.runs import RegisteredManifest
    from schemas import RunManifest

    ChooseManifest = Callable[[Broker, RunManifest], RunManifest]
    """Which manifest of the run that a manifest names is to be read. May raise ConfigError."""

log = get_logger("runs")


def checked_manifest(broker: Broker, found: RunManifest) -> RunManifest:
    """The manifest of the run that `found` names, which need not be `found`.

    Raises ConfigError where no manifest in the register agrees with genesis or, before genesis, where `found` does not
    have the sha256 that it names; and where its configuration is that of another run.
    """
    topics = RunTopics(found.prefix, found.run)
    registered = _registered(broker, topics)
    genesis = genesis_of(broker, topics)
    if genesis is None:
        newest = registered[-1]
        _refuse_own_digest(newest, topics)
        own_settings(newest.manifest)
        return newest.manifest
    wanted = config_sha256(genesis.manifest_json)
    chosen = _first_that_agrees(registered, wanted)
    if chosen is None:
        raise ConfigError(_nothing_agrees(registered[-1], wanted, topics))
    _name_others(registered, chosen, wanted, topics)
    own_settings(chosen.manifest)
    return chosen.manifest


def own_settings(manifest: RunManifest) -> Settings:
    """The configuration of a manifest as it was recorded.

    Raises ConfigError where it is that of another run, or does not fit this version of rollog.
    """
    settings = Settings.from_manifest(manifest.config_json)
    named = settings.run
    if (named.prefix, named.name) != (manifest.prefix, manifest.run):
        raise ConfigError(
            f"the manifest of run {manifest.run!r} in {runs_topic(manifest.prefix)} has the configuration of run "
            f"{named.name!r} with prefix {named.prefix!r}: it is a copy or was forged, and would lead to the files of "
            "that run; find out who may write to that topic, and take the record out with Kafka's tools (a record "
            f"with the key {manifest.run!r} and no value)"
        )
    return settings


def manifest_to_audit(broker: Broker, found: RunManifest) -> RunManifest:
    """The manifest that agrees with genesis; where none does, the newest with the configuration of genesis.

    For the audit, which reports what `checked_manifest` refuses. Raises ConfigError where genesis does not fit this
    version of rollog.
    """
    topics = RunTopics(found.prefix, found.run)
    registered = _registered(broker, topics)
    genesis = genesis_of(broker, topics)
    if genesis is None:
        return registered[-1].manifest
    wanted = config_sha256(genesis.manifest_json)
    chosen = _first_that_agrees(registered, wanted)
    if chosen is not None:
        return chosen.manifest
    return replace(
        registered[-1].manifest,
        config_json=genesis.manifest_json,
        config_sha256=wanted,
        weights_uri=Settings.from_manifest(genesis.manifest_json).weights.uri or "",
    )


def genesis_of(broker: Broker, topics: RunTopics) -> Genesis | None:
    """The body of a ledger's first record; None while there is none, and with a warning, where it is not to be had.

    What somebody else wrote before it is left out, as everywhere.
    """
    with broker.admin() as admin:
        if not admin.describe_topics([topics.steps]):
            return None
    ledger = StoredLedger(broker, topics)
    try:
        first = ledger.first()
    except LedgerError as error:
        log.warning("manifest not compared with genesis", error=error)
        return None
    if first is None and ledger.end_offset:
        log.warning(
            "manifest not compared with genesis: the start of the ledger is deleted or altered",
            topic=topics.steps,
        )
    return first.record.body if first is not None and isinstance(first.record.body, Genesis) else None


def _registered(broker: Broker, topics: RunTopics) -> list[RegisteredManifest]:
    """The manifests under the name of the run that are of its prefix, oldest first."""
    return [
        each
        for each in manifests_of(broker, topics.prefix, topics.run)
        if each.manifest.prefix == topics.prefix
    ]


def _first_that_agrees(registered: Sequence[RegisteredManifest], wanted: str) -> RegisteredManifest | None:
    return next((each for each in registered if _agrees(each.manifest, wanted)), None)


def _agrees(manifest: RunManifest, wanted: str) -> bool:
    return manifest.config_sha256 == wanted == config_sha256(manifest.config_json)


def _refuse_own_digest(registered: RegisteredManifest, topics: RunTopics) -> None:
    manifest = registered.manifest
    computed = config_sha256(manifest.config_json)
    if manifest.config_sha256 != computed:
        raise ConfigError(
            f"the manifest of run {topics.run!r} at {runs_topic(topics.prefix)}, offset {registered.offset}, names "
            f"config_sha256 {manifest.config_sha256!r}, but its configuration has {computed}: it was altered; "
            "find out who may write to that topic, and create a new run with --run"
        )


def _nothing_agrees(newest: RegisteredManifest, wanted: str, topics: RunTopics) -> str:
    return (
        f"the manifest of run {topics.run!r} at {runs_topic(topics.prefix)}, offset {newest.offset}, is not the one "
        f"the run began with: its configuration has sha256 {config_sha256(newest.manifest.config_json)} (it names "
        f"{newest.manifest.config_sha256!r}), the one in genesis at {topics.steps} has {wanted}. Somebody replaced it: "
        "find out who may write to that topic, and restore the record from a backup of the topic or read an archive "
        "of the run with --archive"
    )


def _name_others(
    registered: Sequence[RegisteredManifest], chosen: RegisteredManifest, wanted: str, topics: RunTopics
) -> None:
    for other in registered:
        if other is not chosen and not _agrees(other.manifest, wanted):
            log.warning(
                "manifest ignored: its configuration is not the one in genesis",
                topic=runs_topic(topics.prefix),
                offset=other.offset,
                config_sha256=config_sha256(other.manifest.config_json),
                genesis=wanted,
                taken=chosen.offset,
            )
