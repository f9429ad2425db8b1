"""Games of several seats by a real worker: environments in their processes, the broker in memory."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.seated import (
    Scripted,
    nim_move,
    pair,
    random_game,
    replayed,
    seated,
    seats_task,
    stretches,
    text_of,
)
from support.waiting import wait_until
from support.worker_thread import Stage, a_stage, running, slow_engine

from consumers.evaluation import EvaluationTally
from producers.engines.simulated import SimulatedEngine
from producers.environments.process import EnvironmentLimits
from producers.rewards.episodes import EpisodeRewards
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from schemas import Cancel, CancelReason, FinishReason, Kind, Status, num_turns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from producers.engines.ports import Generation, GenerationRequest
    from producers.rollout.episodes import Episodes
    from schemas import RolloutTask, Sample

pytestmark = pytest.mark.timeout(120)

games_python = os.environ.get("ROLLOG_GAMES_PYTHON")
"""An interpreter that has textarena; without it, this one is used where it has it."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with a_stage(MemoryBroker(), RunTopics("rollog", "first"), tmp_path) as stage:
        yield stage


def played(
    stage: Stage, episodes: Episodes, *tasks: RolloutTask, engine: SimulatedEngine | None = None
) -> list[Sample]:
    """The samples of all replicas that the tasks order, one for each."""
    engine = engine or SimulatedEngine(tokens_per_second=50_000, max_context_tokens=256)
    settings = stage.settings(capacity=64)
    with running(stage, rewards=EpisodeRewards(), episodes=episodes, engine=engine, settings=settings):
        stage.give_grant()
        for task in tasks:
            stage.order(task)
        return stage.samples(sum(task.num_replicas for task in tasks))


def cancel(stage: Stage, task: RolloutTask) -> None:
    stage.order(
        Cancel(task_id=task.task_id, epoch=task.epoch, grant_id=task.grant_id, reason=CancelReason.SURPLUS)
    )


def test_a_game_of_nim_against_itself_is_a_sample_for_each_seat(stage: Stage) -> None:
    tasks = [seats_task(stage, seed=seed, group=seed) for seed in range(8)]
    samples = played(stage, seated("nim"), *tasks, engine=Scripted(nim_move))
    games = defaultdict(list)
    for sample in samples:
        games[sample.group_id].append(sample)
    for first, second in games.values():
        assert [first.status, second.status] == [Status.FINISHED] * 2
        assert {first.reward, second.reward} == {1.0, -1.0}
        assert (first.replica, second.replica) == (0, 1)
        assert abs(num_turns(first.loss_mask) - num_turns(second.loss_mask)) <= 1
        for seat, sample in enumerate((first, second)):
            shown, _ = stretches(sample)
            assert all(f"You are seat {seat + 1}" in text for text in shown)
            assert all("It is your turn" in text.rsplit("\n", 1)[-1] for text in shown)


def test_a_held_out_game_is_a_sample_for_each_seat_too(stage: Stage) -> None:
    task = replace(
        seats_task(stage, seed=3), kind=Kind.EVALUATION, evaluation="greedy", pinned_version=0, group_id=1
    )
    with running(stage, rewards=EpisodeRewards(), episodes=seated("nim"), engine=Scripted(nim_move)):
        stage.give_grant()
        stage.order(task)
        first, second = stage.samples(2, stage.topics.evaluations)
    tally = EvaluationTally(num_seats=2)
    for sample in (first, second):
        assert (sample.status, sample.kind) == (Status.FINISHED, Kind.EVALUATION)
        tally.add(sample)
    assert {first.reward, second.reward} == {1.0, -1.0}
    score = tally.score("greedy", 0)
    assert score is not None
    assert (score.mean_reward, score.num_prompts) == (0.0, 1)
    assert score.seat_rewards == {0: first.reward, 1: second.reward}
    assert stage.read(stage.topics.samples) == []


@pytest.mark.slow
@pytest.mark.skipif(
    games_python is None and importlib.util.find_spec("textarena") is None,
    reason="textarena is not installed",
)
@pytest.mark.parametrize(("says", "num_acting"), [("[check]", 2), ("I do not know.", 1)])
def test_poker_of_textarena_against_itself_is_a_sample_for_each_seat(
    stage: Stage, says: str, num_acting: int
) -> None:
    limits = EnvironmentLimits(num_processes=1, reset_timeout_seconds=60)
    poker = seated("textarena", python=games_python, limits=limits, id="KuhnPoker-v0")
    tasks = [seats_task(stage, seed=seed, group=seed) for seed in range(4)]
    samples = played(stage, poker, *tasks, engine=Scripted(lambda _: says, max_context_tokens=32_768))
    assert {sample.status for sample in samples} == {Status.FINISHED}
    for first, second in zip(samples[::2], samples[1::2], strict=True):
        assert first.reward == -(second.reward or 0.0)
        # What is no move loses the game at once: the other seat is never asked.
        assert sum(num_turns(sample.loss_mask) > 0 for sample in (first, second)) == num_acting
        for seat, sample in enumerate((first, second)):
            assert f"You are Player {seat}" in text_of([*sample.prompt_token_ids, *sample.token_ids])


def test_a_seat_reads_at_its_turn_all_that_it_was_shown_since_its_last_one(stage: Stage) -> None:
    samples = played(stage, seated("nim"), seats_task(stage, seed=3), engine=Scripted(nim_move))
    for sample in samples:
        shown, turns = stretches(sample)
        assert len(turns) > 1
        # After a move of its own come the position that this made, and the one after the other's move.
        assert all(len(text.splitlines()) == 4 for text in shown[1:])


@pytest.mark.parametrize("num_seats", [2, 3])
@pytest.mark.parametrize("max_turns", [3, 50])
def test_random_games_played_again_from_their_records_come_to_the_same(
    stage: Stage, num_seats: int, max_turns: int
) -> None:
    seeds = range(40)
    engine = SimulatedEngine(tokens_per_second=50_000, max_context_tokens=256)
    episodes = seated(
        random_game, seats=num_seats, max_turns=max_turns, with_turn_rewards=True, num_seats=num_seats
    )
    tasks = [seats_task(stage, seed=seed, group=seed, num_replicas=num_seats) for seed in seeds]
    samples = played(stage, episodes, *tasks, engine=engine)
    assert Counter(sample.group_id for sample in samples) == dict.fromkeys(seeds, num_seats)
    kinds: Counter[str] = Counter()
    for seed in seeds:
        kinds.update(kinds_of_game([sample for sample in samples if sample.group_id == seed], seed))
    assert kinds["turns"] > 100
    assert kinds["simultaneous"] > 10
    assert kinds["watched"]
    assert kinds["cut" if max_turns == 3 else "over"]


def kinds_of_game(seats: list[Sample], seed: int) -> Counter[str]:
    """Hold each record of a game against the game itself, and count what occurred in it."""
    acting = {sample.replica: stretches(sample) for sample in seats}
    turns = {seat: said for seat, (_, said) in acting.items()}
    again = replayed(turns, seed)
    assert {seat: len(rewards) for seat, rewards in again.rewards.items()} == {
        seat: len(said) for seat, said in turns.items()
    }
    kinds: Counter[str] = Counter(turns=sum(map(len, turns.values())))
    kinds["over" if again.is_over else "cut"] += 1
    for sample in seats:
        seat = sample.replica
        assert (sample.status, sample.wasted_tokens) == (Status.FINISHED, 0)
        is_cut = not again.is_over and seat not in again.left
        assert sample.finish_reason is (FinishReason.LENGTH if is_cut else FinishReason.STOP)
        assert sample.reward == sum(again.rewards[seat]) + again.early[seat]
        assert list(sample.turn_rewards) == again.rewards[seat]
        if turns[seat]:
            assert acting[seat][0] == again.shown[seat]
        else:
            kinds["watched"] += 1
            assert sample.loss_mask.tolist() == [0]
            seen = "\n".join(again.unread[seat])
            whole = text_of([*sample.prompt_token_ids, *sample.token_ids])
            assert whole == (seen or next(text[0] for text, said in acting.values() if said))
    numbers = [text.split()[0] for shown, _ in acting.values() for text in "\n".join(shown).split("\n")]
    kinds["simultaneous"] += len(numbers) - len(set(numbers))
    return kinds


def test_each_turn_was_generated_from_the_ids_before_it_at_its_own_seat(stage: Stage) -> None:
    engine = Scripted(nim_move)
    samples = played(stage, seated("nim"), seats_task(stage, seed=1), engine=engine)
    for sample in samples:
        ids = [*sample.prompt_token_ids.tolist(), *sample.token_ids.tolist()]
        starts = [
            len(sample.prompt_token_ids) + at
            for at, (before, now) in enumerate(
                zip([0, *sample.loss_mask.tolist()], sample.loss_mask.tolist(), strict=False)
            )
            if now and not before
        ]
        asked = [ids_ for name, ids_ in engine.asked.items() if f"/{sample.replica}#" in name]
        assert asked == [ids[:start] for start in starts]


def test_rewards_of_steps_in_which_others_acted_fall_to_the_last_turn(stage: Stage) -> None:
    first, second = played(stage, seated(pair, with_turn_rewards=True), seats_task(stage))
    assert first.turn_rewards == (0.25, 1.25)
    assert second.turn_rewards == (0.5, 0.0)  # the quarter of the first step came before its first turn


def test_a_seat_that_leaves_early_has_its_sample_when_the_episode_is_over(stage: Stage) -> None:
    leaving = seated(pair, num_turns=6, leaves_at=1, with_turn_rewards=True, max_turns=3)
    first, second = played(stage, leaving, seats_task(stage))
    assert (num_turns(first.loss_mask), first.finish_reason) == (1, FinishReason.STOP)
    assert first.turn_rewards == (0.75,)  # three steps without it
    assert (num_turns(second.loss_mask), second.finish_reason) == (3, FinishReason.LENGTH)


def test_a_group_in_one_task_is_whole_episodes(stage: Stage) -> None:
    samples = played(stage, seated("nim"), seats_task(stage, num_replicas=6), engine=Scripted(nim_move))
    assert [sample.replica for sample in samples] == list(range(6))
    for first, second in zip(samples[::2], samples[1::2], strict=True):
        assert {first.reward, second.reward} == {1.0, -1.0}


@pytest.mark.parametrize("replica", [2, 3])
def test_a_seat_ordered_alone_is_played_against_the_policy_and_recorded_alone(
    stage: Stage, replica: int
) -> None:
    engine = Scripted(nim_move)
    (sample,) = played(
        stage, seated("nim"), seats_task(stage, seed=1, replica=replica, num_replicas=1), engine=engine
    )
    assert (sample.status, sample.replica) == (Status.FINISHED, replica)
    assert f"You are seat {replica - 1}" in stretches(sample)[0][0]
    others = [name for name in engine.asked if f"/{replica}#" not in name]
    assert others
    assert sample.wasted_tokens == 4 * len(others)  # a move is four characters


class MeetsInTheEngine(SimulatedEngine):
    """Answers none before two are asked for."""

    def __init__(self) -> None:
        super().__init__(tokens_per_second=50_000, max_context_tokens=256)
        self._meeting = asyncio.Barrier(2)

    async def generate(self, request: GenerationRequest) -> Generation:
        await self._meeting.wait()
        return await super().generate(request)


def test_seats_that_act_together_are_in_the_engine_together(stage: Stage) -> None:
    samples = played(stage, seated(pair, is_together=True), seats_task(stage), engine=MeetsInTheEngine())
    assert [num_turns(sample.loss_mask) for sample in samples] == [4, 4]


def test_another_number_of_seats_fails_by_name(stage: Stage) -> None:
    samples = played(stage, seated(pair, seats=3), seats_task(stage, num_replicas=3))
    assert {sample.error_class for sample in samples} == {"DataError"}
    assert "has 2 seat(s) and environment.seats = 3" in (samples[0].error_message or "")


@pytest.mark.parametrize(
    ("does", "error"),
    [("raise", "EnvironmentFailed"), ("die", "EnvironmentProcessEnded"), ("hang", "EnvironmentTimedOut")],
)
def test_an_environment_that_fails_fails_every_seat_once(stage: Stage, does: str, error: str) -> None:
    limits = EnvironmentLimits(num_processes=1, step_timeout_seconds=0.5)
    samples = played(stage, seated(pair, limits=limits, at_turn=3, does=does), seats_task(stage))
    assert [(sample.status, sample.error_class) for sample in samples] == [(Status.FAILED, error)] * 2
    assert all(sample.wasted_tokens > 0 for sample in samples)


def test_an_engine_that_refuses_one_seat_fails_the_episode_of_all(stage: Stage) -> None:
    engine = SimulatedEngine(
        tokens_per_second=50_000,
        max_context_tokens=256,
        failure_of=lambda request: "no" if request.request_id.endswith("/1#1") else None,
    )
    samples = played(stage, seated(pair, is_together=True), seats_task(stage), engine=engine)
    assert [sample.error_class for sample in samples] == ["EngineError"] * 2


def test_what_an_episode_alone_wastes_for_others_is_counted_where_it_fails(stage: Stage) -> None:
    task = seats_task(stage, replica=1, num_replicas=1)
    (sample,) = played(stage, seated(pair, at_turn=2, does="raise"), task, engine=Scripted(lambda _: "abcd"))
    assert (sample.status, sample.wasted_tokens) == (Status.FAILED, 8)


@pytest.mark.parametrize("is_generating", [True, False])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_cancelled_task_ends_all_its_seats_and_no_other_episode(
    stage: Stage, *, is_generating: bool, num_replicas: int
) -> None:
    limits = EnvironmentLimits(num_processes=1, step_timeout_seconds=600)
    episodes = seated(pair, limits=limits, at_turn=1, does="" if is_generating else "hang", num_turns=2)
    engine = slow_engine() if is_generating else None
    # Seat 1 alone: the call under way, or the step, is that of a seat without a sample.
    task = seats_task(stage, replica=2 - num_replicas, num_replicas=num_replicas, max_tokens=200)
    other = seats_task(stage, replica=2, max_tokens=200)
    with running(stage, rewards=EpisodeRewards(), episodes=episodes, engine=engine):
        stage.give_grant()
        stage.order(task)
        stage.order(other)
        stage.wait_for_status(lambda status: len(status.first_versions) == 2, "both started")
        cancel(stage, task)
        ended = stage.samples(num_replicas)
        assert [(each.task_id, each.status) for each in ended] == [
            (task.task_id, Status.CANCELLED)
        ] * num_replicas
        stage.wait_for_status(lambda status: status.open_tasks == (other.task_id,), "the other goes on")
    assert [sample.replica for sample in stage.samples(num_replicas + 2)[-2:]] == [2, 3]


def test_a_worker_that_leaves_in_the_middle_ends_each_seat_once(stage: Stage) -> None:
    with running(stage, rewards=EpisodeRewards(), episodes=seated(pair), engine=slow_engine()):
        stage.give_grant()
        stage.order(seats_task(stage))
        stage.wait_for_status(lambda status: bool(status.first_versions), "started")
    samples = stage.samples(2)
    assert [(sample.replica, sample.status) for sample in samples] == [
        (0, Status.CANCELLED),
        (1, Status.CANCELLED),
    ]


class Counting(SimulatedEngine):
    """Knows how many turns it has begun and made, and whether a load came while one was in it."""

    num_begun = 0
    num_made = 0
    was_busy_at_load = False

    async def generate(self, request: GenerationRequest) -> Generation:
        self.num_begun += 1
        try:
            return await super().generate(request)
        finally:
            self.num_made += 1

    async def load_weights(self, path: Path, version: int) -> None:
        self.was_busy_at_load |= self.num_begun > self.num_made
        await super().load_weights(path, version)


@pytest.mark.parametrize("mode", ["keep", "drain", "abort"])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_reload_comes_in_the_middle_of_episodes_in_every_mode(
    stage: Stage, mode: str, num_replicas: int
) -> None:
    engine = Counting(tokens_per_second=60, max_context_tokens=1024, length_of=lambda _: 6)
    settings = stage.settings(reload=mode)
    together = seated(pair, num_turns=12, is_together=True)
    with running(stage, rewards=EpisodeRewards(), episodes=together, engine=engine, settings=settings):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(seats_task(stage, num_replicas=num_replicas))
        wait_until(lambda: engine.num_made >= 4, message="two turns of each seat")
        stage.publish(1)
        samples = stage.samples(num_replicas)
    for sample in samples:
        assert (sample.status, num_turns(sample.loss_mask)) == (Status.FINISHED, 12)
        assert [segment.version for segment in sample.segments] == [0, 1]
    if mode == "drain":
        assert not engine.was_busy_at_load
        assert all(each_turn_is_of_one_version(sample) for sample in samples)


def each_turn_is_of_one_version(sample: Sample) -> bool:
    """Whether the newer version begins where a turn does."""
    start = sample.segments[1].start
    return bool(sample.loss_mask[start] and not sample.loss_mask[start - 1])
