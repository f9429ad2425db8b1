"""The register of runs: one manifest per run on `<prefix>.runs`, compacted by the name of the run.

A name is taken until its run is deleted (`rollog runs delete`). Two that register the same name at once cannot both
succeed: registering is a transaction under an id made of the name, and the later one fences the earlier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.broker.reading import read_to_end
from rollog.kernel.broker.topics import RunTopics, runs_topic
from rollog.kernel.errors import ProducerFenced, RunExists, RunNotFound
from rollog.kernel.logs import get_logger
from rollog.kernel.printable import printable
from schemas import RunManifest
from schemas.codec import SchemaError, decode_as, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollog.kernel.broker.ports import Broker, Record

log = get_logger("runs")

_commit_seconds = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredManifest:
    """A manifest and the offset of its record in the register."""

    manifest: RunManifest
    offset: int


def register_run(broker: Broker, manifest: RunManifest) -> None:
    """Write the manifest of a new run. Raises RunExists when the name is taken."""
    topic = runs_topic(manifest.prefix)
    taken = name_taken(broker, manifest.run)
    transactional_id = RunTopics(manifest.prefix, manifest.run).manifest_transactional_id
    with broker.transactional_producer(transactional_id, topics=[topic]) as producer:
        if manifest.run in read_runs(broker, manifest.prefix):
            raise taken
        try:
            producer.begin()
            producer.send(topic, 0, encode(manifest), key=manifest.run.encode(), headers=headers_of(manifest))
            producer.commit(_commit_seconds)
        except ProducerFenced as error:
            raise taken from error


def unregister_run(broker: Broker, prefix: str, run: str) -> None:
    """Take a run's manifest out of the register; one that is not there is fine."""
    topic = runs_topic(prefix)
    transactional_id = RunTopics(prefix, run).manifest_transactional_id
    with broker.transactional_producer(transactional_id, topics=[topic]) as producer:
        producer.begin()
        producer.send(topic, 0, None, key=run.encode())
        producer.commit(_commit_seconds)


def name_taken(broker: Broker, run: str) -> RunExists:
    """The error for a name that is taken, with the ways on."""
    return RunExists(
        f"run {run!r} exists already at {broker.address}: choose another name with --run, or go on "
        f"with it: `rollog resume {run}` does what is left of it on this machine, with changed settings, too; "
        f"`rollog dispatch`, `rollog rollout` and `rollog train` with --run {run} do so one by one, "
        f"`rollog watch --run {run}` shows it and writes its summary (the embedded broker is `rollog broker`); "
        f"or delete it for good with `rollog runs delete {run}`, which frees the name"
    )


def read_runs(broker: Broker, prefix: str) -> dict[str, RunManifest]:
    """All runs under `prefix` by name; empty while there is no register.

    Records that are unreadable or of another prefix are logged and passed over.
    """
    found: dict[str, RunManifest] = {}
    for record, manifest in _manifests(broker, prefix):
        if manifest is None:
            found.pop((record.key or b"").decode(errors="replace"), None)
        elif manifest.prefix != prefix:
            log.warning(
                "manifest of another prefix",
                topic=record.topic,
                offset=record.offset,
                prefix=printable(manifest.prefix),
            )
        else:
            found[manifest.run] = manifest
    return found


def manifests_of(broker: Broker, prefix: str, run: str) -> list[RegisteredManifest]:
    """Every manifest that stands under that name, oldest first: more than one only until the topic is compacted.

    Those before a deletion are of a run that is no more.
    """
    found: list[RegisteredManifest] = []
    for record, manifest in _manifests(broker, prefix):
        if manifest is None and record.key == run.encode():
            found.clear()
        elif manifest is not None and manifest.run == run:
            found.append(RegisteredManifest(manifest=manifest, offset=record.offset))
    return found


def find_run(
    broker: Broker,
    prefix: str,
    run: str,
    *,
    wait_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RunManifest:
    """The manifest of `run`, waiting for it at most so long. Raises RunNotFound, naming those that exist."""
    deadline = clock() + wait_seconds
    while True:
        runs = read_runs(broker, prefix)
        if run in runs:
            return runs[run]
        if clock() >= deadline:
            known = ", ".join(sorted(runs)) or "none"
            raise RunNotFound(
                f"there is no run {run!r} in {runs_topic(prefix)} at {broker.address} (runs there: {known}); "
                "start it with `rollog up` or create it with `rollog topics create`"
            )
        sleep(min(0.2, wait_seconds))


def _manifests(broker: Broker, prefix: str) -> Iterator[tuple[Record, RunManifest | None]]:
    """The records of the register with what they say; None for a deletion. Unreadable ones are logged and left out."""
    topic = runs_topic(prefix)
    with broker.admin() as admin:
        if not admin.describe_topics([topic]):
            return
    with broker.consumer(client_id="runs-reader") as consumer:
        for record in read_to_end(consumer, topic, 0):
            if record.value is None:
                yield record, None
                continue
            try:
                manifest = decode_as(RunManifest, record.value)
            except SchemaError as error:
                log.warning("manifest unreadable", topic=topic, offset=record.offset, error=error)
                continue
            yield record, manifest
