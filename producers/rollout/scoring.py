"""The half of a rollout beside the engine: a response is scored. It always ends in a sample."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from producers.rewards.episodes import own_reward
from producers.rollout.actions import failed
from producers.rollout.outcomes import finished_sample, unfinished_sample
from producers.rollout.prompts import reward_fields, reward_prompt
from rollog.kernel.errors import DataError, RewardError
from schemas import Kind, Timings, num_turns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.engines.ports import Generation
    from producers.rewards.functions import RewardResult
    from producers.rewards.ports import Rewards
    from producers.rollout.outcomes import Replica
    from producers.rollout.session import WorkerSession
    from schemas import Fork, Sample, TurnSpan, UInt8Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """A response with all its tokens, not scored yet; `reward` is what an environment gave.

    `loss_mask` is 1 for tokens that the engine made and 0 for those of an environment. A session of model calls has
    `turns`, and `forks` where they do not all extend one another; `wasted_tokens` were made beside, for nothing that is
    recorded.
    """

    replica: Replica
    generation: Generation
    loss_mask: UInt8Array
    prompt_token_ids: Sequence[int]
    text: str
    generation_seconds: float
    reward: RewardResult | None = None
    forks: tuple[Fork, ...] = ()
    turns: tuple[TurnSpan, ...] = ()
    resumed_from: str | None = None
    """Task id of the attempt of which turns were taken over."""
    wasted_tokens: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_one_turn(
        cls,
        replica: Replica,
        generation: Generation,
        *,
        prompt_token_ids: Sequence[int],
        text: str,
        generation_seconds: float = 0.0,
    ) -> Response:
        """What the engine made of a prompt, all of which is trained."""
        return cls(
            replica=replica,
            generation=generation,
            loss_mask=np.ones(len(generation.token_ids), dtype="u1"),
            prompt_token_ids=prompt_token_ids,
            text=text,
            generation_seconds=generation_seconds,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of its turns, without those that were made beside."""
        if self.turns:
            return sum(turn.end - turn.start for turn in self.turns)
        return int(self.loss_mask.sum())

    @property
    def num_turns(self) -> int:
        """How many turns a reward of turns has an entry for."""
        return len(self.turns) or num_turns(self.loss_mask)


class ResponseScorer:
    """Makes samples of responses. The two `Rewards` differ in the negative control only.

    With `has_late_rewards` samples of training come without a reward, unless the response brings one: they wait for it.
    """

    def __init__(
        self,
        session: WorkerSession,
        *,
        training_rewards: Rewards,
        evaluation_rewards: Rewards,
        has_late_rewards: bool = False,
    ) -> None:
        self._has_late_rewards = has_late_rewards
        self._session = session
        self._rewards = {Kind.TRAINING: training_rewards, Kind.EVALUATION: evaluation_rewards}
        self._scoring: dict[str, asyncio.Future[RewardResult]] = {}

    async def score(self, response: Response) -> Sample:
        """Make the sample of one response, finished or not."""
        began_at = time.monotonic()
        replica = response.replica
        is_late = self._has_late_rewards and replica.task.kind is Kind.TRAINING
        try:
            reward = None if is_late and response.reward is None else await self._reward(response)
        except (DataError, RewardError) as error:
            ending = self._session.ending_of(replica.task.task_id)
            return unfinished_sample(
                replica,
                self._session.worker_id,
                ending or failed(type(error).__name__, str(error)),
                timings=Timings(generation_seconds=response.generation_seconds),
                wasted_tokens=response.num_tokens + response.wasted_tokens,
            )
        return finished_sample(
            response,
            self._session.worker_id,
            reward=reward,
            digest_of=self._session.digest_of,
            timings=Timings(
                generation_seconds=response.generation_seconds, reward_seconds=time.monotonic() - began_at
            ),
        )

    def interrupt(self, request_id: str) -> None:
        """Make the matching `score` end early, as the session says."""
        scoring = self._scoring.get(request_id)
        if scoring is not None:
            scoring.cancel()

    async def _reward(self, response: Response) -> RewardResult:
        replica = response.replica
        task = replica.task
        prompt, fields = reward_prompt(task.prompt), reward_fields(task.prompt)
        if response.reward is not None:
            fields[own_reward] = response.reward
        scoring = asyncio.ensure_future(self._rewards[task.kind].score(prompt, response.text, fields))
        self._scoring[replica.request_id] = scoring
        try:
            return _checked(await scoring, response.num_turns)
        except asyncio.CancelledError:
            if self._session.ending_of(task.task_id) is None or not scoring.cancelled():
                raise
            raise RewardError("the rollout was interrupted while it was scored") from None
        finally:
            del self._scoring[replica.request_id]


def _checked(reward: RewardResult, expected: int) -> RewardResult:
    """The reward, whose turns are those of the response. Raises RewardError."""
    if reward.turn_rewards and len(reward.turn_rewards) != expected:
        raise RewardError(
            f"the reward function returned {len(reward.turn_rewards)} turn_rewards for a response of {expected} "
            "turn(s); give one for each, or none"
        )
    return reward
