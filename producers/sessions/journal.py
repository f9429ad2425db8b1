"""The turns of one rollout as they go to the log, and those of an earlier attempt as they are served again.

A call whose input equals that of a recorded turn not served yet gets its tokens, and nothing is generated: they were
drawn under these ids. The first other call drops the rest of what was recorded, and from there on all is live. That is
exact for any environment; how alike it behaves the second time only decides how much is saved.

    generate ──> `turns`, acknowledged ──> the caller, who records and answers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from producers.engines.ports import Generation, VersionSpan
from producers.sessions.recorder import check_generation
from producers.sessions.turn_chain import TakenTurn, common_prefix, placed_input, shared_ids
from schemas import Segment, Turn, TurnBase, int32_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.sessions.turn_chain import Chain
    from schemas import Int32Array, RolloutTask


class TurnLog(Protocol):
    """Where turns become durable."""

    async def write(self, turn: Turn, partition: int) -> None:
        """Return when the turn is acknowledged. Raises BrokerError where that is not known; the worker ends then."""
        ...


class Journal:
    """The turns of one rollout. `taken` is what may be served again."""

    def __init__(
        self,
        task: RolloutTask,
        worker_id: str,
        log: TurnLog,
        *,
        digest_of: Callable[[int], str],
        taken: Chain | None = None,
        on_served: Callable[[Turn], None] = lambda _: None,
    ) -> None:
        self._on_served = on_served
        self._task = task
        self._worker_id = worker_id
        self._log = log
        self._digest_of = digest_of
        self._taken_from = taken.task_id if taken else None
        self._unserved = dict(enumerate(taken.turns)) if taken else {}
        self._served: list[int] = []
        self._last_served: tuple[TakenTurn, Int32Array] | None = None
        self._is_live = False
        self._base: TurnBase | None = None
        """What the next turn says that it stands behind; None once a turn on the log has said it for all."""
        self._turns: list[TakenTurn] = []

    @property
    def resumed_from(self) -> str | None:
        """Task id of the attempt of which something was served again; None where nothing was."""
        return self._taken_from if self._served else None

    @property
    def num_served(self) -> int:
        """How many turns were served again."""
        return len(self._served)

    def served(self, input_ids: Sequence[int]) -> Generation | None:
        """What was sampled after this input in an earlier attempt, once; None where the call is to be generated."""
        ids = int32_array(input_ids)
        # Of inputs that are as long, the one that has every id in common is the same.
        alike = [number for number, taken in self._unserved.items() if taken.num_input_ids == len(ids)]
        shared = shared_ids(ids, [self._unserved[number] for number in alike], self._known_of(ids))
        for number, num_shared in zip(alike, shared, strict=True):
            if num_shared == len(ids):
                return self._serve(number, ids)
        self._go_on_live()
        return None

    def _go_on_live(self) -> None:
        """Nothing is served any more, so all turns that follow stand behind what was."""
        if self._is_live:
            return
        self._is_live = True
        self._unserved.clear()
        self._last_served = None
        if self._taken_from is not None and self._served:
            self._base = TurnBase(task_id=self._taken_from, numbers=tuple(self._served))

    def _known_of(self, ids: Int32Array) -> dict[TakenTurn, int]:
        """What an input has in common with the turn that was served last: most calls go on from it."""
        if self._last_served is None:
            return {}
        taken, last_ids = self._last_served
        return {taken: common_prefix(last_ids, ids)}

    def _serve(self, number: int, ids: Int32Array) -> Generation:
        taken = self._unserved.pop(number)
        self._served.append(number)
        self._last_served = taken, np.concatenate((ids, taken.turn.token_ids))
        self._turns.append(taken)
        self._on_served(taken.turn)
        return _generation_of(taken.turn)

    async def keep(self, input_ids: Sequence[int], generation: Generation) -> None:
        """Put what was generated on the log, before anybody sees it; `served` had nothing for this input.

        Raises BrokerError, SessionFailed where the engine made what is no turn; nothing is written then.
        """
        check_generation(input_ids, generation)
        ids = int32_array(input_ids)
        parent, shared = placed_input(ids, self._turns)
        turn = Turn(
            task_id=self._task.task_id,
            worker_id=self._worker_id,
            group_id=self._task.group_id,
            replica=self._task.replica,
            attempt=self._task.attempt,
            number=len(self._turns),
            base=self._base,
            parent=parent,
            shared=shared,
            # A copy: a view would hold the whole input, and every turn is held to the end.
            context=ids[shared:].copy(),
            token_ids=generation.token_ids,
            behaviour_logprobs=generation.behaviour_logprobs,
            segments=self._segments(generation.spans),
            finish_reason=generation.finish_reason,
        )
        self._turns.append(TakenTurn(turn, self._turns[parent] if parent >= 0 else None))
        await self._log.write(turn, self._task.sample_partition)
        self._base = None

    def _segments(self, spans: Sequence[VersionSpan]) -> tuple[Segment, ...]:
        return tuple(
            Segment(
                version=span.version,
                weights_digest=self._digest_of(span.version),
                start=span.start,
                end=span.end,
            )
            for span in spans
        )


def _generation_of(turn: Turn) -> Generation:
    return Generation(
        token_ids=turn.token_ids,
        behaviour_logprobs=turn.behaviour_logprobs,
        spans=tuple(
            VersionSpan(version=segment.version, start=segment.start, end=segment.end)
            for segment in turn.segments
        ),
        finish_reason=turn.finish_reason,
    )
