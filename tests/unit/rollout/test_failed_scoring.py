"""What a rollout has cost whose response could not be scored."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from support.builders import a_task
from support.session_driver import worker_id
from support.worker_thread import LengthRewards

from producers.engines.ports import Generation, VersionSpan
from producers.rollout.outcomes import Replica
from producers.rollout.scoring import Response, ResponseScorer
from producers.rollout.session import WorkerSession
from schemas import FinishReason, Sample, Status, TurnSpan, float32_array, int32_array, uint8_array


def failed(response: Response) -> Sample:
    session = WorkerSession(
        worker_id, capacity=1, load_attempts=1, reward_function="m:f", clock=time.monotonic
    )
    rewards = LengthRewards()
    sample = asyncio.run(
        ResponseScorer(session, training_rewards=rewards, evaluation_rewards=rewards).score(response)
    )
    assert sample.status is Status.FAILED
    return sample


def a_response() -> Response:
    """Two tokens, one of context, two tokens; scoring it fails."""
    task = a_task(0, 0)
    prompt = replace(task.prompt, reward_inputs_json='{"behaviour": "fail"}')
    return Response(
        replica=Replica(replace(task, prompt=prompt)),
        generation=Generation(
            token_ids=int32_array(range(5)),
            behaviour_logprobs=float32_array([-1] * 5),
            spans=(VersionSpan(version=0, start=0, end=5),),
            finish_reason=FinishReason.STOP,
        ),
        loss_mask=uint8_array([1, 1, 0, 1, 1]),
        prompt_token_ids=[1],
        text="",
        generation_seconds=0.0,
        wasted_tokens=7,
    )


def test_what_was_made_beside_an_episode_is_wasted_once() -> None:
    assert failed(a_response()).wasted_tokens == 4 + 7


def test_what_was_made_beside_a_session_is_wasted_once() -> None:
    turns = tuple(
        TurnSpan(number=number, sequence=0, start=start, end=start + 2, finish_reason=FinishReason.STOP)
        for number, start in enumerate((0, 3))
    )
    assert failed(replace(a_response(), turns=turns)).wasted_tokens == 4 + 7
