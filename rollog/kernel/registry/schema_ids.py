"""From fingerprints to the ids of a registry and back; each is asked for once.

| asked | answer | kept |
| --- | --- | --- |
| id of a schema on a topic | the one under its subject | for good: ids never change |
| fingerprint of an id | that of the schema's text, whosever it is | for good, the newest 4096 |
| the same | none: no such id, no Avro, no schema | for a minute: somebody may be about to register it |
| either | the registry is away, slow, or answers nothing usable | for a pause that grows from 0.5 s to 15 s |

Whoever reads has a lease to keep and other partitions to read. So an id is asked for by a thread of its own, which a
reader waits for no longer than `wait_seconds`; it is told later what the answer was.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from threading import Condition, Thread
from typing import TYPE_CHECKING

from fastavro.schema import SchemaParseException

from rollog.kernel.errors import RegistryRefused, RegistryUnreachable
from rollog.kernel.logs import get_logger
from schemas.catalogue import schema_from

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollog.kernel.registry.client import RegistryClient
    from rollog.kernel.registry.registration import RegisteredSchema
    from rollog.kernel.registry.subjects import Subject

log = get_logger("registry")

_most_ids = 4096
_unknown_seconds = 60.0
_first_pause_seconds = 0.5
_longest_pause_seconds = 15.0

_refusals = (SchemaParseException, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What a text of anybody's makes the parser of schemas raise."""


class SchemaIds:
    """The ids of one run's schemas in one registry; may be shared between threads.

    Raises RegistryUnreachable and RegistryRefused; during a pause the last of them again, without asking.
    """

    def __init__(
        self,
        client: RegistryClient,
        subjects: Sequence[Subject],
        *,
        wait_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._changed = Condition()
        self._subjects = {
            (subject.topic, schema.fingerprint): (subject, schema)
            for subject in subjects
            for schema in subject.schemas
        }
        self._ids: dict[tuple[str, bytes], int] = {}
        self._fingerprints: OrderedDict[int, tuple[bytes | None, float]] = OrderedDict()
        self._is_asking = False
        self._failure: Exception | None = None
        self._pause_seconds = 0.0
        self._ask_again_at = 0.0

    def learn(self, registered: Sequence[RegisteredSchema]) -> None:
        """Take over ids that are known already."""
        ids = {(each.subject.name, each.schema.fingerprint): each.schema_id for each in registered}
        for place, (subject, schema) in self._subjects.items():
            if (subject.name, schema.fingerprint) in ids:
                self._ids[place] = ids[subject.name, schema.fingerprint]

    def id_on(self, topic: str, fingerprint: bytes) -> int | None:
        """The id with which a record of this schema is written to a topic; None where it has no subject there."""
        place = (topic, fingerprint)
        if place in self._ids:
            return self._ids[place]
        if place not in self._subjects:
            return None
        subject, schema = self._subjects[place]
        self._raise_during_pause()
        try:
            found = self._client.registered_id(subject.name, schema.definition)
        except Exception as error:
            self._note(error)
            raise
        self._note(None)
        if found is None:
            raise RegistryRefused(
                f"{schema.name} (fingerprint {fingerprint.hex()}) is not registered under subject {subject.name} "
                f"at {self._client.url}: register it with `rollog topics schemas register`"
            )
        self._ids[place] = found
        return found

    def fingerprint_of(self, schema_id: int) -> bytes | None:
        """The fingerprint of the schema that has this id, ours or not; None where it names no Avro schema.

        Raises RegistryUnreachable, too, where there is no answer within `wait_seconds`; then one comes later.
        """
        deadline = time.monotonic() + self._wait_seconds
        with self._changed:
            while True:
                found, until = self._fingerprints.get(schema_id, (None, 0.0))
                if found is not None or self._clock() < until:
                    return found
                self._raise_during_pause()
                if not self._is_asking:
                    self._is_asking = True
                    Thread(target=self._look_up, args=(schema_id,), daemon=True, name="schema id").start()
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise RegistryUnreachable(
                        f"the schema registry at {self._client.url} has not said yet what schema id {schema_id} is"
                    )

    def may_ask(self) -> bool:
        """Whether the registry would be asked now; false during a pause after a failure, and while it is asked."""
        return not self._is_asking and (self._failure is None or self._clock() >= self._ask_again_at)

    def _look_up(self, schema_id: int) -> None:
        failure: Exception | None = None
        found: bytes | None = None
        try:
            text = self._client.schema_of(schema_id)
            found = None if text is None else _fingerprint(text)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for the answer
            failure = error
        with self._changed:
            self._note(failure)
            if failure is None:
                self._keep(schema_id, found)
            self._is_asking = False
            self._changed.notify_all()

    def _keep(self, schema_id: int, found: bytes | None) -> None:
        if found is None:
            log.warning("schema id unknown", schema_id=schema_id, registry=self._client.url)
        self._fingerprints[schema_id] = (found, self._clock() + _unknown_seconds)
        self._fingerprints.move_to_end(schema_id)
        if len(self._fingerprints) > _most_ids:
            self._fingerprints.popitem(last=False)

    def _raise_during_pause(self) -> None:
        if self._failure is not None and self._clock() < self._ask_again_at:
            raise self._failure

    def _note(self, failure: Exception | None) -> None:
        """Begin a longer pause after a failure, and end all pauses after an answer."""
        self._failure = failure
        if failure is None:
            self._pause_seconds = 0.0
            return
        longer = max(_first_pause_seconds, 2 * self._pause_seconds)
        self._pause_seconds = min(longer, _longest_pause_seconds)
        self._ask_again_at = self._clock() + self._pause_seconds


def _fingerprint(text: str) -> bytes | None:
    """The fingerprint of a schema of anybody's; None for what is no Avro schema with a name of its own."""
    try:
        return schema_from(json.loads(text)).fingerprint
    except _refusals as error:
        log.warning("schema unusable", error=f"{type(error).__name__}: {error}")
        return None
