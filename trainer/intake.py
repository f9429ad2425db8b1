"""What arrives while a trainer works: samples and rewards, read into its buffer.

Consumes `samples`, and `rewards` where those come late. A sample that the ledger has disposed of is passed over; one
that was begun with the version in flight makes the trainer take note first that this is committed. On a crash they are
read again from the low-water marks.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from rollog.kernel.errors import BrokerError, NotAuthorized
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.rules.headers import SampleHeader
    from trainer.log_readers import OpenReaders
    from trainer.recorded.history import History
    from trainer.reporting import Reporter

log = get_logger("trainer")

poll_seconds = 0.05
_most_polls_behind_step = 20


class Intake:
    """Brings samples and rewards into the buffer. `land` returns when nothing is in flight."""

    def __init__(
        self,
        reading: OpenReaders,
        history: History,
        reporter: Reporter,
        *,
        clock: Callable[[], float],
        land: Callable[[], None],
    ) -> None:
        self._buffer = reading.buffer
        self._stream = reading.stream
        self._rewards = reading.rewards
        self._control = reading.control
        self._history = history
        self._reporter = reporter
        self._clock = clock
        self._land = land

    def take_in_samples(self, timeout_seconds: float) -> bool:
        """Take in what arrives until then; whether anything did."""
        started = self._clock()
        headers = self._stream.poll(timeout_seconds)
        self._reporter.polled(self._clock() - started)
        for header in headers:
            if self._is_ahead(header):
                # Begun with the version in flight, which therefore is committed: without its digest no sample of it
                # can be judged.
                self._land()
            # After a take-over reading begins at the low-water marks, above which some are disposed of already.
            if self._history.state.is_disposed(*header.place):
                self._stream.release([header.place])
            else:
                self._buffer.add(header)
        return bool(headers)

    def take_in_rewards(self) -> None:
        """Take in rewards, where samples come without."""
        if self._rewards is not None:
            now = self._clock()
            self._rewards.take_in(now)
            self._reporter.rewards(self._rewards.num_by_outcome, self._buffer.waits, now)

    def catch_up(self) -> None:
        """Take in what arrived while the step was computed, as far as the broker gives it within a second.

        A group that was complete before the commit had to wait for its batch. Read after it, it would look slow.
        """
        try:
            ends = self._stream.end_offsets()
            # Without their tasks, issued during the step, samples could not be placed.
            self._control.catch_up()
        except NotAuthorized:
            raise
        except BrokerError as error:
            log.warning("samples that arrived during the step are read after it", error=str(error))
            return
        for _ in range(_most_polls_behind_step):
            if all(map(operator.ge, self._stream.positions, ends)):
                return
            self.take_in_samples(poll_seconds)

    def _is_ahead(self, header: SampleHeader) -> bool:
        return any(segment.version > self._history.committed_version for segment in header.segments)
