"""The half of a rollout beside the engine: a response is scored. It always ends in a sample."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.rollout.actions import failed
from producers.rollout.outcomes import finished_sample, unfinished_sample
from producers.rollout.prompts import reward_fields, reward_prompt
from rollog.kernel.errors import DataError, RewardError
from schemas import Kind, Timings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.engines.ports import Generation
    from producers.rewards.functions import RewardResult
    from producers.rewards.ports import Rewards
    from producers.rollout.outcomes import Replica
    from producers.rollout.session import WorkerSession
    from schemas import Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """A response with all its tokens, not scored yet."""

    replica: Replica
    generation: Generation
    prompt_token_ids: Sequence[int]
    text: str
    generation_seconds: float

    @property
    def num_tokens(self) -> int:
        """Tokens that the engine made."""
        return len(self.generation.token_ids)


class ResponseScorer:
    """Makes samples of responses. The two `Rewards` differ in the negative control only."""

    def __init__(
        self, session: WorkerSession, *, training_rewards: Rewards, evaluation_rewards: Rewards
    ) -> None:
        self._session = session
        self._rewards = {Kind.TRAINING: training_rewards, Kind.EVALUATION: evaluation_rewards}
        self._scoring: dict[str, asyncio.Future[RewardResult]] = {}

    async def score(self, response: Response) -> Sample:
        """Make the sample of one response, finished or not."""
        began_at = time.monotonic()
        replica = response.replica
        try:
            reward = await self._reward(response)
        except (DataError, RewardError) as error:
            ending = self._session.ending_of(replica.task.task_id)
            return unfinished_sample(
                replica,
                self._session.worker_id,
                ending or failed(type(error).__name__, str(error)),
                timings=Timings(generation_seconds=response.generation_seconds),
                wasted_tokens=response.num_tokens,
            )
        return finished_sample(
            replica,
            self._session.worker_id,
            response.generation,
            prompt_token_ids=response.prompt_token_ids,
            response_text=response.text,
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
        scoring = asyncio.ensure_future(self._rewards[task.kind].score(prompt, response.text, fields))
        self._scoring[replica.request_id] = scoring
        try:
            return _checked(await scoring, num_turns=1 if response.num_tokens else 0)
        except asyncio.CancelledError:
            if self._session.ending_of(task.task_id) is None or not scoring.cancelled():
                raise
            raise RewardError("the rollout was interrupted while it was scored") from None
        finally:
            del self._scoring[replica.request_id]


def _checked(reward: RewardResult, num_turns: int) -> RewardResult:
    """The reward, whose turns are those of the response. Raises RewardError."""
    if reward.turn_rewards and len(reward.turn_rewards) != num_turns:
        raise RewardError(
            f"the reward function returned {len(reward.turn_rewards)} turn_rewards for a response of {num_turns} "
            "turn(s); give one for each, or none"
        )
    return reward
