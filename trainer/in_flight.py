"""The step in flight: trained and sealed, being written and committed beside the training of the next one.

Consumes sealed steps, one at a time. Produces the weights of each, then its transaction, from a thread of its own.

| a step is | from | until |
| --- | --- | --- |
| training | its batch was chosen | its weights are trained, and nothing is in flight any more |
| sealed, in flight | its weights are copied, its record lacks their digest alone | its transaction is committed |
| committed | its notice and its record are in the log | - |

Example: step 4 is sealed, and step 5 trains. The thread writes version 4, puts its digest into the record and commits
both; workers load version 4 while step 5 still trains. When step 5 is trained, the trainer takes note that 4 has
landed, seals 5, and begins 6. Had it been quicker, it would have waited before it sealed.

While a step is in flight its thread alone uses the ledger's writer and the host copy. On a crash what was not committed
never happened, and neither did what was trained on top of it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Self

from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import WeightsError, WeightsStoreSilent
from rollog.kernel.lifecycle import Component
from rollog.kernel.logs import get_logger
from schemas import Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

    from consumers.ledger import LedgerEntry
    from schemas import DeadLetter, LedgerRecord, WeightVersion
    from trainer.ledger.writer import LedgerWriter
    from trainer.publishing import PublishedWeights, SealedWeights, WeightsPublisher

log = get_logger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What runs beside training: one executor for steps in flight, one for what is left to do of checkpoints.

    A write that fails is made again after each of these pauses, and then once more.
    """

    steps: Executor
    checkpoints: Executor
    pauses_seconds: tuple[float, ...] = (1.0, 5.0, 15.0)

    @classmethod
    def threads(cls) -> Self:
        """A thread for each."""
        return cls(
            steps=ThreadPoolExecutor(1, thread_name_prefix="publishing"),
            checkpoints=ThreadPoolExecutor(1, thread_name_prefix="checkpoints"),
        )

    def close(self) -> None:
        """End both, when they have done what they were given."""
        self.steps.shutdown()
        self.checkpoints.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedStep:
    """A step of which nothing changes any more; its record has no `weights_sha256` yet."""

    record: LedgerRecord
    weights: SealedWeights
    dead_letters: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedStep:
    """A record that is committed, as it stands in the ledger.

    `notices` are those of the weights in its transaction, if any. `write_seconds` are of weights that were written
    beside training; None where none were.
    """

    entry: LedgerEntry
    dead_letters: tuple[DeadLetter, ...]
    commit_seconds: float
    notices: tuple[WeightVersion, ...] = ()
    write_seconds: float | None = None

    @property
    def weights_sha256(self) -> str:
        """Of the version that it made."""
        body = self.entry.record.body
        assert isinstance(body, Step)
        return body.weights_sha256


class InFlight(Component):
    """At most one sealed step, on its way into the log. `stop` ends pauses between attempts to write."""

    def __init__(
        self,
        publisher: WeightsPublisher,
        writer: LedgerWriter,
        background: Background,
        *,
        clock: Callable[[], float],
        stop: Event,
    ) -> None:
        self._publisher = publisher
        self._writer = writer
        self._background = background
        self._clock = clock
        self._stop = stop
        self._future: Future[LandedStep] | None = None
        self._since = 0.0
        self._is_closing = False
        self._is_awaited = Event()
        self._landed_at: float | None = None
        self._free_seconds = 0.0
        """Between the landing of the step before and the seal of the next one."""

    def close(self) -> None:
        """Wait for what is in flight, which a trainer that fails commits all the same. Idempotent."""
        self._is_closing = True
        self._is_awaited.set()
        future, self._future = self._future, None
        error = None if future is None else future.exception()
        if error is not None:
            log.warning("the step in flight was not committed", error=str(error))

    @property
    def is_empty(self) -> bool:
        """Whether every step that was sent has been taken note of."""
        return self._future is None

    @property
    def seconds(self) -> float:
        """For how long the step has been in flight."""
        return 0.0 if self._future is None else self._clock() - self._since

    def send(self, step: SealedStep) -> Callable[[], str]:
        """Begin to write and commit; call only with nothing in flight.

        Returns who waits until the step is committed and then tells the sha256 of its weights, on any thread.
        """
        assert self._future is None, "one step is in flight at most"
        self._since = self._clock()
        self._landed_at = None
        self._is_awaited.clear()
        future = self._future = self._background.steps.submit(self._land, step)
        tidied = self._background.steps.submit(self._tidy, future)
        tidied.add_done_callback(_say_error)
        return lambda: future.result().weights_sha256

    def make_way(self) -> None:
        """The next step is trained: what is done behind the one before ends, until that step is sent."""
        self._free_seconds = 0.0 if self._landed_at is None else self._clock() - self._landed_at
        self._is_awaited.set()

    def landed(self, *, wait: bool = False) -> LandedStep | None:
        """The step, once, when it is committed; None while it is not, unless `wait`, and with nothing in flight.

        Raises what its thread met: WeightsError of a store that took no attempt, BrokerTimeout, Superseded, Expired.
        """
        future = self._future
        if future is None or not (wait or future.done()):
            return None
        self._future = None
        return future.result()

    def _land(self, step: SealedStep) -> LandedStep:
        began = self._clock()
        # The weights first, then their notice in the transaction: a worker never reads of some that are not there.
        weights = self._written(step.weights)
        reach(CrashPoint.WEIGHTS_WRITTEN)
        written = self._clock()
        entry = self._writer.commit(
            named(step.record, weights.notice), weights=weights.notices, dead_letters=step.dead_letters
        )
        return LandedStep(
            entry=entry,
            dead_letters=step.dead_letters,
            notices=weights.notices,
            write_seconds=written - began,
            commit_seconds=self._clock() - written,
        )

    def _tidy(self, landed: Future[LandedStep]) -> None:
        """Behind a commit, where nobody waits for it; it gives way to workers, to the next step, and to the end."""

        def is_over() -> bool:
            is_next = self._is_awaited.is_set() or self._future not in {None, landed}
            return is_next or self._is_closing or self._stop.is_set()

        if landed.exception() is not None:
            return
        if not is_over():
            self._landed_at = self._clock()
            # Workers, which may be on this machine, take the version in now, and need about as long as writing it took.
            self._is_awaited.wait(min(landed.result().write_seconds or 0.0, self._free_seconds / 2))
        self._publisher.tidy(is_over)

    def _written(self, weights: SealedWeights) -> PublishedWeights:
        for pause_seconds in self._background.pauses_seconds:
            try:
                return self._publisher.write(weights)
            except WeightsStoreSilent:
                raise  # it was waited for as long as the settings say
            except WeightsError as error:
                log.warning(
                    "weights are written again",
                    version=weights.version,
                    in_seconds=pause_seconds,
                    error=str(error),
                )
            self._stop.wait(pause_seconds)
        return self._publisher.write(weights)


def _say_error(tidied: Future[None]) -> None:
    if not tidied.cancelled() and (error := tidied.exception()) is not None:
        log.error("the next cumulative patch is not prepared", error=repr(error))


def named(record: LedgerRecord, notice: WeightVersion) -> LedgerRecord:
    """The record of a sealed step with the digest of its weights."""
    body = record.body
    assert isinstance(body, Step)
    return replace(record, body=replace(body, weights_sha256=notice.sha256))
