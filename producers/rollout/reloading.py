"""What a worker does when weights arrive: fetch the file, pause the engine, overwrite its weights, go on.

`producers.rollout.session` decides when; this does it, and reports back how it ended.

    notice of a version -> session.on_weights -> Load -> Reloader.fetch -> session.fetched -> Swap -> Reloader.swap
                                                    |                                           |
                                                    +-> session.fetch_failed                    +-> session.loaded
                                                                                                +-> session.load_failed

The engine and its rollouts know nothing of a fetch: they stand still for the swap alone.

Anybody may be able to write a notice. While its file is fetched, the ledger is asked for its version; one that is not
there is disowned by the session instead.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.crash_points import CrashPoint, reach
from rollog.kernel.errors import EngineDied, EngineError, WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.versions.shared_copy import CopyAhead

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from producers.engines.ports import Engine
    from producers.rollout.actions import Action, Swap
    from producers.rollout.downloads import Downloads
    from producers.rollout.engine_calls import EngineCalls
    from producers.rollout.first_load import FirstLoad
    from producers.rollout.reporting import WorkerReport
    from producers.rollout.session import ReloadMode, WorkerSession
    from schemas import WeightVersion

_log = get_logger("rollout")
_ahead_seconds = 0.05
"""Until a version that another worker of this machine has read of is looked for here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloader:
    """Puts committed versions in service. `act` does what the session asks for, `beat` sends a heartbeat.

    `is_foreign` says whether the ledger is known not to hold a version.
    """

    engine: Engine
    session: WorkerSession
    report: WorkerReport
    calls: EngineCalls
    downloads: Downloads
    reload: ReloadMode
    retry_seconds: float
    act: Callable[[Iterable[Action]], None]
    beat: Callable[[], None]
    is_foreign: Callable[[WeightVersion], Awaitable[bool]]
    first_load: FirstLoad

    async def fetch(self, notice: WeightVersion) -> None:
        """Download the file of a version while rollouts go on, and others are started."""
        self.report.fetch_begins()
        is_foreign, failure = await asyncio.gather(self.is_foreign(notice), self._fetch(notice))
        if is_foreign:
            _log.warning("weights notice ignored: the ledger has no such version", version=notice.version)
            self.downloads.discard()
            self.act(self.session.disown(notice))
            self.report.reload_given_up()
            self.beat()
            return
        if isinstance(failure, CopyAhead):
            self.report.reload_given_up()
            await asyncio.sleep(_ahead_seconds)
            self.act(self.session.fetch_again())
            return
        if failure is not None:
            await self._fail(self.session.fetch_failed, notice, failure)
            return
        actions = self.session.fetched(notice)
        self.report.fetched()
        self.act(actions)

    async def _fetch(self, notice: WeightVersion) -> WeightsError | None:
        try:
            await self.downloads.fetch(notice)
        except WeightsError as error:
            return error
        return None

    async def swap(self, swap: Swap) -> None:
        """Overwrite the engine's weights by the fetched file; tokens from here on are of that version.

        Raises EngineDied, and LogprobsOff where the first weights make the engine compute something else.
        """
        notice = swap.notice
        self.report.engine_pauses()
        self.calls.hold()
        try:
            if self.reload == "drain":
                await self.calls.drained()
            await self._suspend(swap.suspended)
            await self.engine.pause()
            await self.engine.load_weights(self.downloads.path, notice.version)
            reach(CrashPoint.SWAP_HALF_DONE)
            await self.engine.resume()
        except EngineDied:
            raise
        except (WeightsError, EngineError) as error:
            await self._pause()
            await self._fail(self.session.load_failed, notice, error)
            return
        await self.first_load.check(notice)
        self.downloads.loaded()
        self.report.reloaded(notice.version)
        self.calls.go_on()
        self.act(self.session.loaded(notice))
        self.beat()

    async def _suspend(self, task_ids: Sequence[str]) -> None:
        """Take the rollouts of these tasks out of the engine.

        One that it does not have yet is kept by the pause, and so is a seat that is played without a sample.
        """
        request_ids = [name for task_id in task_ids for name in self.session.request_ids_of(task_id)]
        await asyncio.gather(*(self.calls.suspend(request_id) for request_id in request_ids))

    async def _pause(self) -> None:
        # Weights that may be half overwritten must not make another token.
        self.report.engine_pauses()
        self.calls.hold()
        await self.engine.pause()

    async def _fail(
        self, tell: Callable[[WeightVersion, str], list[Action]], notice: WeightVersion, error: Exception
    ) -> None:
        """Tell the session, say so, and try again a little later."""
        _log.error("load failed", version=notice.version, error=str(error))
        self.act(tell(notice, str(error)))
        self.report.load_failed()
        self.report.reload_given_up()
        self.beat()
        if not self.session.is_leaving:
            await asyncio.sleep(self.retry_seconds)
            self.act(self.session.retry_load())
