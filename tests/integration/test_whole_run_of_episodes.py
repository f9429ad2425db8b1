"""Episodes of several turns through the whole loop: real broker, transformers, DeepSpeed, environments in processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.threaded_run import check_logprobs_of_first_step, small_settings, verdict_counts, whole_run

from schemas import Disposition, num_turns

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [pytest.mark.broker, pytest.mark.engine]


# The default mode; the others, which single-role tests show too, are for the slow ones.
@pytest.mark.parametrize(
    "mode", ["keep", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("drain", "abort"))]
)
def test_episodes_are_played_trained_and_audited_whatever_a_reload_does(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path, mode: str
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 3},
        freshness={"alpha": 2.0},
        data={"train": None},
        reward={"function": None},
        environment={
            "name": "support.episodes_for_tests:Turns",
            "parameters": {"num_turns": 3},
            "turn_rewards": True,
            "num_train": 20,
            "num_held_out": 4,
            "num_processes": 1,
        },
        groups={"groups_per_batch": 2, "group_size": 4, "filter_zero_signal": False},
        rollout={"engine": "transformers", "capacity": 8, "reload": mode},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
        finished = run.finished_samples()
    run.audited()
    assert verdict_counts(ledger)[Disposition.TRAINED] == 3 * 2 * 4
    assert all(num_turns(sample.loss_mask) == len(sample.turn_rewards) == 3 for sample in finished)
    assert all(not sample.behaviour_logprobs[sample.loss_mask == 0].any() for sample in finished)
    check_logprobs_of_first_step(ledger)


@pytest.mark.parametrize(
    ("num_turns_of_game", "of_seats"),
    [
        (5, {(0, 3, 1.5), (1, 2, 0.75)}),
        (1, {(0, 1, 1.0), (1, 0, 0.25)}),  # seat 1 never is to act
    ],
)
def test_games_of_two_seats_are_played_trained_and_audited(
    kafka_broker: KafkaBroker,
    run_topics: RunTopics,
    tmp_path: Path,
    num_turns_of_game: int,
    of_seats: set[tuple[int, int, float]],
) -> None:
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"num_steps": 3},
        freshness={"alpha": 1.0},
        data={"train": None},
        reward={"function": None},
        environment={
            "name": "support.episodes_for_tests:Pair",
            "parameters": {"num_turns": num_turns_of_game},
            "seats": 2,
            "num_train": 20,
            "num_held_out": 4,
            "num_processes": 1,
        },
        groups={"groups_per_batch": 2, "group_size": 4, "redundant_replicas": 2},
        rollout={"engine": "transformers", "capacity": 8, "reload": "drain"},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        ledger = run.to_its_end()
        finished = run.finished_samples()
        held_out = run.view().held_out
    run.audited()
    # Both seats of four held-out games, at the first version and at the last.
    assert held_out.keys() == {("greedy", 0), ("greedy", 3)}
    for score in held_out.values():
        assert (score.num_prompts, score.num_rollouts) == (4, 8)
        assert score.seat_rewards == {seat: reward for seat, _, reward in of_seats}
    assert verdict_counts(ledger)[Disposition.TRAINED] == 3 * 2 * 4
    played = {(sample.replica % 2, num_turns(sample.loss_mask), sample.reward) for sample in finished}
    assert played == of_seats
