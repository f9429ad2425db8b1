"""I16: objects that large samples name are there and fit their records. What was pruned is not met, and not checked.

Consumes the objects of the store, each once, in the order of the records that name them; holds one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.errors import PayloadError, PayloadStoreSilent
from schemas import SchemaError
from schemas.claim_check import joined

if TYPE_CHECKING:
    from consumers.audit.findings import Check, Place
    from rollog.kernel.payloads import PayloadStore
    from schemas import Sample


class ObjectChecks:
    """Reads the object of each sample that names one. Without a store, and where it is silent, they are not checked."""

    def __init__(self, check: Check, store: PayloadStore | None) -> None:
        self._check = check
        self._store = store
        self._newest: tuple[str, Sample] | None = None

    def check(self, sample: Sample | None, place: Place) -> None:
        """One sample that was judged, and not dead: its bytes were fetched and were those."""
        self._newest = None
        if sample is None or sample.payload is None:
            return
        if self._store is None:
            self._check.num_unchecked += 1
            return
        try:
            whole = joined(sample, self._store.fetch(sample.payload))
        except PayloadStoreSilent:
            self._check.num_unchecked += 1
        except (PayloadError, SchemaError) as error:
            self._check.num_checked += 1
            self._check.find(
                f"judged, and its object is not as named: {error}", place=place, record_id=sample.sample_id
            )
        else:
            self._check.num_checked += 1
            self._newest = (sample.payload.sha256, whole)

    def whole(self, sample: Sample) -> Sample | None:
        """The sample that was checked last, with its arrays; None for another one, or where they were no good."""
        if self._newest is None or sample.payload is None or self._newest[0] != sample.payload.sha256:
            return None
        return self._newest[1]
