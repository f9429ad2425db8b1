"""Sessions of agents by a real worker: agents in their processes, HTTP, a scripted engine, the broker in memory."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.agent_sessions import Asked, a_session, agents, an_engine, check_sample, served
from support.chat_models import a_chat_tokenizer
from support.served_session import endpoint_process
from support.waiting import wait_until
from support.worker_thread import Stage, a_stage, running

from producers.engines.simulated import SimulatedEngine
from producers.rewards.episodes import EpisodeRewards
from producers.rewards.functions import RewardResult
from producers.sessions.text_tokens import TextTokens
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import DataError
from rollog.kernel.metrics import Metrics
from rollog.kernel.processes import exists
from schemas import Cancel, CancelReason, FinishReason, Status
from schemas.sample_checks import check_sample as check_promises

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from producers.engines.ports import Generation, GenerationRequest
    from schemas import Sample

pytestmark = pytest.mark.timeout(120)


class RememberingRewards:
    """Remembers what it was asked to judge."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, str]] = []

    async def start(self) -> None:
        pass

    async def score(self, prompt: object, response: str, fields: Mapping[str, Any]) -> RewardResult:
        del fields
        self.asked.append((prompt, response))
        return RewardResult(reward=1.0)

    async def close(self) -> None:
        pass


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with a_stage(MemoryBroker(), RunTopics("rollog", "first"), tmp_path) as stage:
        yield stage


def text_of(ids: Any) -> str:
    decoded: str = a_chat_tokenizer().decode(ids.tolist())
    return decoded


def _is_gone(pid: int) -> bool:
    return not exists(pid)


def num_sampled(sample: Sample) -> int:
    return sum(turn.end - turn.start for turn in sample.turns) + sample.wasted_tokens


def test_a_session_of_two_calls_is_one_sequence_of_exact_turns(stage: Stage) -> None:
    asked, rewards = Asked(), RememberingRewards()
    (sample,) = served(
        stage,
        agents(),
        a_session(stage),
        engine=an_engine(["yes<|im_end|>", "no<|im_end|>"], asked),
        rewards=rewards,
    )
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert sample.finish_reason is FinishReason.STOP
    assert (len(sample.turns), sample.forks, sample.wasted_tokens) == (2, (), 0)
    assert [turn.untrained for turn in sample.turns] == [None, None]
    said = [text_of(sample.token_ids[turn.start : turn.end]) for turn in sample.turns]
    assert said == ["yes<|im_end|>", "no<|im_end|>"]
    assert rewards.asked == [("hi", "said no")]
    assert sample.response_text == "said no"
    assert sample.metadata["session_end"] == "returned"
    check_sample(sample, asked)
    check_promises(sample)


def test_a_session_survives_the_deaths_of_the_process_that_serves_it(stage: Stage) -> None:
    asked, endpoint = Asked(), endpoint_process()

    class Killing(SimulatedEngine):
        """Kills the endpoint's process in the middle of some calls."""

        async def generate(self, request: GenerationRequest) -> Generation:
            if len(asked.inputs) in (2, 5) and endpoint.pid is not None:
                os.kill(endpoint.pid, signal.SIGKILL)
            return await super().generate(request)

    (sample,) = served(
        stage,
        agents("eight_calls_again_where_a_connection_breaks", endpoint),
        a_session(stage),
        engine=an_engine(["yes<|im_end|>", "no<|im_end|>"], asked, engine_class=Killing),
        rewards=RememberingRewards(),
    )
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert endpoint.num_starts == 3
    assert (len(sample.turns), sample.forks, len(asked.inputs)) == (8, (), 8)
    assert [turn.untrained for turn in sample.turns] == [None] * 8
    check_sample(sample, asked)
    check_promises(sample)


@pytest.mark.slow
def test_an_agent_may_ask_with_the_openai_client(stage: Stage) -> None:
    (sample,) = served(stage, agents("two_calls_of_the_openai_client"), a_session(stage))
    assert (sample.response_text, len(sample.turns), sample.forks) == ("said yes", 2, ())


def test_a_call_that_begins_anew_is_a_fork_and_the_agents_own_reward_counts(stage: Stage) -> None:
    asked = Asked()
    own = agents("forgets", has_own_reward=True)
    (sample,) = served(stage, own, a_session(stage), engine=an_engine(asked=asked), rewards=EpisodeRewards())
    assert [(fork.parent, fork.reason) for fork in sample.forks] == [(0, "new_context")]
    assert [turn.sequence for turn in sample.turns] == [0, 1]
    assert (sample.reward, sample.reward_components) == (2.5, {"calls": 2.0})
    assert sample.turn_rewards == (0.5, 2.0)
    check_sample(sample, asked)
    check_promises(sample)


def test_an_agent_without_the_reward_that_it_owes_fails_by_name(stage: Stage) -> None:
    (sample,) = served(stage, agents(has_own_reward=True), a_session(stage), rewards=EpisodeRewards())
    assert sample.error_class == "RewardError"
    assert "the agent gave no reward" in (sample.error_message or "")
    assert sample.wasted_tokens > 0


def test_an_agent_that_raises_because_its_turns_are_used_up_is_scored_and_cut(stage: Stage) -> None:
    (sample,) = served(stage, agents("asks_for_ever", max_turns=3), a_session(stage))
    assert (sample.status, sample.finish_reason) == (Status.FINISHED, FinishReason.LENGTH)
    assert sample.metadata["session_end"] == "budget"
    assert len(sample.turns) == 3


def test_an_agent_that_heeds_no_refusal_is_ended_after_its_grace(stage: Stage) -> None:
    (sample,) = served(
        stage, agents("never_heeds_a_refusal", max_turns=2, grace_seconds=0.3), a_session(stage)
    )
    assert (sample.status, sample.finish_reason) == (Status.FINISHED, FinishReason.LENGTH)
    assert len(sample.turns) == 2


def test_the_budget_of_tokens_bounds_all_calls_together(stage: Stage) -> None:
    engine = an_engine(["word " * 40])
    (sample,) = served(stage, agents("asks_for_ever", max_tokens=100), a_session(stage), engine=engine)
    assert sum(turn.end - turn.start for turn in sample.turns) == 100
    assert sample.turns[-1].finish_reason is FinishReason.LENGTH


def test_an_agent_that_breaks_off_at_the_end_of_the_context_is_cut(stage: Stage) -> None:
    engine = an_engine(["word " * 300])
    (sample,) = served(
        stage, agents("asks_for_ever", max_tokens=100_000), a_session(stage, max_tokens=3000), engine=engine
    )
    assert sample.finish_reason is FinishReason.LENGTH
    assert sample.metadata["session_end"] == "budget"


def test_parallel_calls_are_numbered_as_they_are_recorded_and_each_is_trained(stage: Stage) -> None:
    asked = Asked()
    (sample,) = served(stage, agents("parallel"), a_session(stage), engine=an_engine(asked=asked))
    assert sample.response_text == "4 answers"
    assert sorted(turn.sequence for turn in sample.turns) == [0, 1, 2, 3]
    check_sample(sample, asked)


@pytest.mark.parametrize(
    ("function", "changes", "error", "said"),
    [
        ("asks_nothing", {}, "no_trainable_turn", "does the agent call the policy endpoint?"),
        ("raises", {}, "AgentFailed", "KeyError at agents_for_tests.py"),
        ("dies", {}, "AgentFailed", "with status 3"),
        ("returns_an_object", {}, "AgentFailed", "may return nothing, its answer as text"),
        ("forgets", {"max_forks": 0}, "TooManyForks", "has 0 forks and a call begins another"),
    ],
)
def test_what_goes_wrong_fails_the_session_by_name(
    stage: Stage, function: str, changes: dict[str, Any], error: str, said: str
) -> None:
    (sample,) = served(stage, agents(function, **changes), a_session(stage))
    assert (sample.status, sample.error_class) == (Status.FAILED, error)
    assert said in (sample.error_message or "")


@pytest.mark.parametrize(
    ("changes", "error"), [({"timeout_seconds": 4.0}, "AgentTimedOut"), ({"idle_seconds": 2.0}, "AgentIdle")]
)
def test_an_agent_that_hangs_is_killed_with_what_it_started(
    stage: Stage, tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    pids = tmp_path / "pids"
    (sample,) = served(stage, agents("hangs", **changes), a_session(stage, pids=str(pids)))
    assert sample.error_class == error
    for pid in map(int, pids.read_text("ascii").split()):
        wait_until(partial(_is_gone, pid), message=f"the end of process {pid}")


@pytest.mark.parametrize("is_generating", [True, False])
def test_a_cancelled_session_ends_at_once_with_its_agent(
    stage: Stage, tmp_path: Path, *, is_generating: bool
) -> None:
    pids = tmp_path / "pids"
    engine = an_engine(["word " * 100], tokens_per_second=0.5) if is_generating else an_engine()
    task = a_session(stage, pids=str(pids))
    with running(stage, agents=agents("hangs"), engine=engine, tokenizer=a_chat_tokenizer()):
        stage.give_grant()
        stage.order(task)
        wait_until(pids.is_file, message="the agent")
        stage.order(
            Cancel(
                task_id=task.task_id, epoch=task.epoch, grant_id=task.grant_id, reason=CancelReason.SURPLUS
            )
        )
        sample = stage.sample()
        assert (sample.status, sample.cancel_reason) == (Status.CANCELLED, "surplus")
        for pid in map(int, pids.read_text("ascii").split()):
            wait_until(partial(_is_gone, pid), message=f"the end of process {pid}")


class SlowUntilReloaded(SimulatedEngine):
    """Under version 0 so slow that a call is under way when the next version comes; is not stopped at once."""

    async def pause(self) -> None:
        await self._clock.sleep(0.2)
        await super().pause()

    async def abort(self, request_id: str) -> None:
        await self._clock.sleep(0.2)
        await super().abort(request_id)

    async def load_weights(self, path: Path, version: int) -> None:
        await super().load_weights(path, version)
        self._tokens_per_second = 5000.0 if version else 20.0


@pytest.mark.parametrize("reload", ["keep", "abort"])
def test_a_reload_in_the_middle_of_a_call_is_hidden_from_the_agent(stage: Stage, reload: str) -> None:
    asked = Asked()
    engine = an_engine(["word " * 80], asked, engine_class=SlowUntilReloaded)
    settings = stage.settings(reload=reload)
    with running(stage, agents=agents(), engine=engine, tokenizer=a_chat_tokenizer(), settings=settings):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(a_session(stage, max_tokens=200))
        wait_until(lambda: asked.inputs, message="a call in the engine")
        stage.publish(1)
        sample = stage.sample()
    assert (sample.status, sample.error_message) == (Status.FINISHED, None)
    assert [turn.untrained for turn in sample.turns] == [None, None]
    assert [segment.version for segment in sample.segments] == [0, 1]
    assert 0 < sample.segments[0].end < sample.turns[0].end == 200
    check_promises(sample)


def test_many_sessions_at_once_are_counted_by_end(stage: Stage) -> None:
    metrics, said = Metrics(), TextTokens(a_chat_tokenizer()).added_ids("yes<|im_end|>")
    tasks = [a_session(stage, group=group, text=f"task {group}") for group in range(8)]
    with running(stage, agents=agents(), engine=an_engine(), tokenizer=a_chat_tokenizer(), metrics=metrics):
        stage.give_grant()
        for task in tasks:
            stage.order(task)
        samples = stage.samples(8)
    assert {sample.status for sample in samples} == {Status.FINISHED}
    assert {num_sampled(sample) for sample in samples} == {2 * len(said)}
    value = metrics.registry.get_sample_value
    assert value("rollog_rollout_sessions_total", {"end": "returned"}) == 8.0
    assert value("rollog_rollout_turns_total") == 16.0


def test_an_agent_knows_its_task_and_none_of_the_workers_secrets(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKERS_SECRET", "x")
    task = replace(a_session(stage, colour="red"), seed=7)
    (sample,) = served(stage, agents("knows_its_task"), task)
    assert sample.response_text.startswith(
        f"{task.prompt.prompt_id} hi {{'colour': 'red'}} 7 [] http://127.0.0.1:"
    )


def test_a_function_that_is_not_there_ends_the_worker_with_its_remedy(stage: Stage) -> None:
    with pytest.raises(
        DataError, match=r"agent\.function = 'support\.agents_for_tests:missing' cannot be imported"
    ):
        raise _error_of(stage)


def _error_of(stage: Stage) -> BaseException:
    with running(
        stage,
        agents=agents("missing"),
        engine=an_engine(),
        tokenizer=a_chat_tokenizer(),
        expect_error=True,
    ) as thread:
        thread.join(60)
    error = stage.error
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error is not None
    return error
