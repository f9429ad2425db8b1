"""Objects of large samples, fetched while the trainer goes on: only a sample whose bytes were checked is judged.

| the store | the sample |
| --- | --- |
| gives the bytes that the record names, and they fit it | is judged like any other |
| gives other bytes, or bytes that do not fit the record | is dead: `payload_altered` |
| answers and does not have it, for `max_wait_seconds` together | is dead: `payload_missing` |
| does not answer | waits, however long; that time does not count |

A few objects are fetched at once, by threads, so that a store that hangs holds up no heartbeat and no step. What waits
is bounded: whoever asks `is_full` reads no further samples meanwhile. On a crash nothing is lost: the next trainer
reads the records again, and waiting begins anew.

Example with `max_wait_seconds` = 60: the object of a sample is missing at 0 s and 20 s; from 30 s to 3600 s the store
is silent; at 3601 s it answers and has it not. 20 s of waiting count, and the sample is dead 40 s later unless its
object has come.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from rollog.kernel.errors import PayloadAltered, PayloadError, PayloadMissing, PayloadStoreSilent
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from rollog.rules.headers import SampleHeader, SampleLimits, joined_header, with_defect
from schemas import SchemaError
from schemas.claim_check import joined

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from rollog.kernel.broker.ports import Record
    from rollog.kernel.payloads import PayloadStore
    from schemas import Sample

    Fetched = tuple[Record, SampleHeader, Sample | None]

log = get_logger("trainer")

_num_threads = 4
_most_waiting = 256
_pause_seconds = 1.0


@dataclass(slots=True)
class _Waiting:
    """One sample whose object is not here. `missing_since` is when the store last began to say that it has it not."""

    record: Record
    header: SampleHeader
    sample: Sample
    future: Future[bytes] | None = None
    next_try_at: float = -math.inf
    missing_since: float | None = None
    missing_seconds: float = 0.0
    silence: str | None = field(default=None, repr=False)

    def says_missing(self, now: float) -> float:
        """The store answered that it has it not; returns for how long it has said so."""
        if self.missing_since is not None:
            self.missing_seconds += now - self.missing_since
        self.missing_since, self.silence = now, None
        return self.missing_seconds

    def is_silent(self, reason: str) -> None:
        """The store did not answer: the time since it last did does not count."""
        self.missing_since, self.silence = None, reason


class PayloadFetches(Component):
    """Takes samples with objects in, and gives them out when there is something to judge."""

    def __init__(
        self,
        store: PayloadStore,
        limits: SampleLimits,
        *,
        max_payload_bytes: int,
        max_wait_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._limits = limits
        self._max_payload_bytes = max_payload_bytes
        self._max_wait_seconds = max_wait_seconds
        self._clock = clock
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._threads = ThreadPoolExecutor(_num_threads, thread_name_prefix="payloads")

    def close(self) -> None:
        """Fetch nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def add(self, record: Record, header: SampleHeader, sample: Sample) -> None:
        """A sample that names an object, and is judged by the record alone to be a candidate."""
        self._waiting[header.place] = _Waiting(record, header, sample)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read before some of what waits is decided."""
        return len(self._waiting) >= _most_waiting

    @property
    def num_waiting(self) -> int:
        """Samples whose objects are not here."""
        return len(self._waiting)

    @property
    def silence(self) -> str | None:
        """Why the store does not answer, if one of the last tries came to that."""
        return next((each.silence for each in self._waiting.values() if each.silence is not None), None)

    @property
    def longest_missing_seconds(self) -> float:
        """How long the store has said of one object that it has it not, at most."""
        return max((each.missing_seconds for each in self._waiting.values()), default=0.0)

    def lowest_offsets(self) -> dict[int, int]:
        """Per partition the smallest offset of what waits."""
        lowest: dict[int, int] = {}
        for partition, offset in self._waiting:
            lowest[partition] = min(offset, lowest.get(partition, offset))
        return lowest

    @property
    def is_fetching(self) -> bool:
        """Whether an answer of the store is on its way."""
        return any(each.future is not None for each in self._waiting.values())

    def decided(self, timeout_seconds: float) -> list[Fetched]:
        """Samples that can be judged now, by place; those whose object is no good have a defect and no sample.

        Waits so long at most, and only for fetches that are under way.
        """
        found: list[Fetched] = []
        until = time.monotonic() + timeout_seconds
        while True:
            running = self._started()
            left = until - time.monotonic()
            done, _ = (
                wait(running, max(0.0, left), return_when=FIRST_COMPLETED) if running else (set(), set())
            )
            found += self._outcomes(done)
            if not running or (not done and left <= 0.0):
                return sorted(found, key=lambda each: each[1].place)

    def _outcomes(self, done: AbstractSet[Future[bytes]]) -> list[Fetched]:
        answered = [(place, each) for place, each in self._waiting.items() if each.future in done]
        found = []
        for place, waiting in answered:
            assert waiting.future is not None
            outcome = self._outcome(waiting, waiting.future)
            if outcome is not None:
                del self._waiting[place]
                found.append(outcome)
        return found

    def _started(self) -> list[Future[bytes]]:
        """The fetches under way, with new ones where there is room."""
        now = self._clock()
        running = [each.future for each in self._waiting.values() if each.future is not None]
        due = (each for each in self._waiting.values() if each.future is None and each.next_try_at <= now)
        for waiting in islice(due, _num_threads - len(running)):
            waiting.future = self._threads.submit(self._fetch, waiting.sample)
            running.append(waiting.future)
        return running

    def _fetch(self, sample: Sample) -> bytes:
        payload = sample.payload
        assert payload is not None
        if payload.num_bytes > self._max_payload_bytes:
            raise PayloadAltered(
                f"its record names an object of {payload.num_bytes} bytes, more than broker.max_payload_bytes = "
                f"{self._max_payload_bytes}"
            )
        return self._store.fetch(payload)

    def _outcome(self, waiting: _Waiting, future: Future[bytes]) -> Fetched | None:
        """What is to be judged; None where there is nothing yet."""
        waiting.future = None
        now = self._clock()
        waiting.next_try_at = now + _pause_seconds
        try:
            sample = joined(waiting.sample, future.result())
        except PayloadStoreSilent as error:
            if waiting.silence is None:
                log.warning("sample waits for the store", sample=waiting.sample.sample_id, error=str(error))
            waiting.is_silent(str(error))
            return None
        except PayloadMissing as error:
            if waiting.says_missing(now) < self._max_wait_seconds:
                return None
            return self._dead(waiting, f"payload_missing: {error}")
        except (PayloadError, SchemaError) as error:
            return self._dead(waiting, f"payload_altered: {error}")
        header = joined_header(waiting.header, sample, self._limits)
        return waiting.record, header, sample if header.defect is None else None

    def _dead(self, waiting: _Waiting, reason: str) -> Fetched:
        log.warning("sample is dead", sample=waiting.sample.sample_id, reason=reason)
        return waiting.record, with_defect(waiting.header, reason), None
