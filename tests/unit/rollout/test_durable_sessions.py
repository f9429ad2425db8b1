"""Calls of agents are on the log before they are answered, and another worker gives the same answers again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.agent_sessions import Asked, a_session, agents, an_engine, check_sample
from support.chat_models import a_chat_tokenizer
from support.waiting import wait_until
from support.worker_thread import Stage, a_stage, running

from producers.engines.simulated import SimulatedEngine
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from schemas import Kind, Sample, Status, Turn, float32_array, int32_array
from schemas.sample_checks import check_sample as check_promises

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from producers.engines.ports import Generation, GenerationRequest
    from producers.rollout.agents import Agents
    from schemas import RolloutTask

pytestmark = pytest.mark.timeout(120)

num_calls = 5
texts = [f"answer {number}<|im_end|>" for number in range(num_calls)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with a_stage(MemoryBroker(), RunTopics("rollog", "first"), tmp_path) as stage:
        yield stage


def turns(stage: Stage) -> list[Turn]:
    return [record for record in stage.read(stage.topics.turns) if isinstance(record, Turn)]


def a_task(stage: Stage, attempt: int, **fields: Any) -> RolloutTask:
    task = a_session(stage, calls=num_calls, until=str(stage.home / "go on"), **fields)
    return replace(
        task,
        task_id=f"1.{attempt + 1}",
        grant_id=f"1.{attempt + 1}",
        attempt=attempt,
        seed=attempt + 5,
        turns_position=0,
        resume_attempt=0 if attempt else None,
    )


def a_worker(
    stage: Stage, attempt: int, asked: Asked, served_agents: Agents, **fields: object
) -> AbstractContextManager[object]:
    stage.worker_id = f"worker-{attempt}"
    stage.stop.clear()
    stage.give_grant(f"1.{attempt + 1}")
    stage.order(a_task(stage, attempt, **fields))
    return running(
        stage,
        agents=served_agents,
        engine=an_engine(texts[len(turns(stage)) :] or texts[-1:], asked),
        tokenizer=a_chat_tokenizer(),
        settings=replace(stage.settings(), durable_turns=True),
    )


def left_behind(stage: Stage, asked: Asked, at_call: int) -> None:
    with a_worker(stage, 0, asked, agents("many_calls"), stays_at=at_call):
        wait_until(lambda: len(turns(stage)) == at_call, message="the calls before the agent stays")


def finished(stage: Stage, attempt: int, asked: Asked, served_agents: Agents) -> Sample:
    before = len(stage.read(stage.topics.samples))
    with a_worker(stage, attempt, asked, served_agents):
        samples = stage.samples(before + 1)
    (sample,) = (sample for sample in samples if sample.attempt == attempt)
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    check_promises(sample)
    return sample


def test_every_call_is_on_the_log_and_is_what_the_sample_says(stage: Stage) -> None:
    asked = Asked()
    sample = finished(stage, 0, asked, agents("many_calls"))
    check_sample(sample, asked)
    kept = turns(stage)
    assert [turn.number for turn in kept] == list(range(num_calls))
    row = sample.token_ids
    assert [turn.token_ids.tolist() for turn in kept] == [
        row[turn.start : turn.end].tolist() for turn in sample.turns
    ]


def test_an_agent_that_is_run_again_gets_the_answers_that_it_had(stage: Stage) -> None:
    first, second = Asked(), Asked()
    left_behind(stage, first, at_call=3)
    sample = finished(stage, 1, second, agents("many_calls"))
    assert (len(first.inputs), len(second.inputs)) == (3, num_calls - 3)
    assert (sample.resumed_from, sample.wasted_tokens) == ("1.1", 0)
    assert len(sample.turns) == num_calls
    both = Asked([*first.inputs, *second.inputs], [*first.said, *second.said])
    check_sample(sample, both)


def test_an_agent_that_acts_outside_is_begun_anew(stage: Stage) -> None:
    left_behind(stage, Asked(), at_call=3)
    asked = Asked()
    sample = finished(stage, 1, asked, agents("many_calls", may_resume=False))
    assert len(asked.inputs) == num_calls
    assert sample.resumed_from is None


def test_an_agent_that_asks_something_else_goes_on_live(stage: Stage) -> None:
    left_behind(stage, Asked(), at_call=3)
    asked = Asked()
    sample = finished(stage, 1, asked, agents("two_calls"))
    # The first call is the same, the second one is not.
    assert len(asked.inputs) == 1
    assert sample.resumed_from == "1.1"
    assert len(sample.turns) == 2


def test_the_session_of_an_evaluation_keeps_no_turns(stage: Stage) -> None:
    stage.give_grant()
    stage.order(
        replace(
            a_session(stage, calls=num_calls), kind=Kind.EVALUATION, pinned_version=0, evaluation="greedy"
        )
    )
    with running(
        stage,
        agents=agents("many_calls"),
        engine=an_engine(texts),
        tokenizer=a_chat_tokenizer(),
        settings=replace(stage.settings(), durable_turns=True),
    ):
        (sample,) = stage.samples(1, stage.topics.evaluations)
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert turns(stage) == []


class Speechless(SimulatedEngine):
    """Samples nothing."""

    async def generate(self, request: GenerationRequest) -> Generation:
        made = await super().generate(request)
        return replace(made, token_ids=int32_array(), behaviour_logprobs=float32_array(), spans=())


def test_a_call_without_a_token_fails_its_session_by_name(stage: Stage) -> None:
    stage.give_grant()
    stage.order(a_session(stage, calls=num_calls))
    with running(
        stage,
        agents=agents("many_calls"),
        engine=an_engine(texts, engine_class=Speechless),
        tokenizer=a_chat_tokenizer(),
        settings=replace(stage.settings(), durable_turns=True),
    ):
        sample = stage.sample()
    assert (sample.status, sample.error_class) == (Status.FAILED, "NoTokens")
    assert turns(stage) == []


def test_a_call_that_fits_into_no_record_fails_its_session_by_name(stage: Stage) -> None:
    stage.give_grant()
    stage.order(a_session(stage, calls=num_calls))
    settings = stage.settings()
    with running(
        stage,
        agents=agents("many_calls"),
        engine=an_engine(texts),
        tokenizer=a_chat_tokenizer(),
        settings=replace(
            settings,
            durable_turns=True,
            broker=settings.broker.model_copy(update={"max_record_bytes": 300}),
        ),
    ):
        sample = stage.sample()
    assert (sample.status, sample.error_class) == (Status.FAILED, "TurnTooLarge")
