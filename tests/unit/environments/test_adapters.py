"""The adapters, each made and played in this process."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.openenv_server import openenv_server

from producers.dispatcher.episode_seeds import held_out_seeds
from producers.environments.adapters.folded_seeds import folded_seed
from producers.environments.adapters.guess_number import GuessNumber
from producers.environments.adapters.nim import Nim
from producers.environments.adapters.openenv_sessions import OpenEnvSession
from producers.environments.adapters.private_random import PrivateRandom

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytest.importorskip("reasoning_gym")
pytest.importorskip("gymnasium")

from producers.environments.adapters.gymnasium_text import GymnasiumText  # needs the package
from producers.environments.adapters.reasoning_gym_items import ReasoningGymItem  # the same


def test_a_number_is_found_by_halving_and_early_guesses_are_worth_more() -> None:
    environment = GuessNumber(largest=8, max_turns=4)
    rewards = set()
    for seed in range(20):
        environment.reset(seed)
        low, high, turns = 1, 8, 0
        while True:
            turns += 1
            guess = (low + high) // 2
            result = environment.step(f"Not {high}, I say {guess}.")
            if result.is_over:
                break
            low, high = (guess + 1, high) if result.observation.text == "higher" else (low, guess - 1)
        assert result.reward == (5 - turns) / 4
        rewards.add(result.reward)
    assert len(rewards) > 1


def test_text_without_a_number_costs_the_turn() -> None:
    environment = GuessNumber()
    environment.reset(1)
    assert environment.step("well...").observation.text == "I see no number. Say one."


@pytest.mark.parametrize(
    ("moves", "winner", "said"),
    [
        (["1 9"], 1, "no legal move"),
        (["heap"], 1, "no legal move"),
        (["1 0"], 1, "no legal move"),
        (["1 1", "3 1"], 0, "no legal move"),
        (["1 1", "2 1"], 1, "took the last"),
    ],
)
def test_nim_ends_with_its_last_object_or_an_illegal_move(moves: list[str], winner: int, said: str) -> None:
    environment = Nim(num_heaps=2, largest_heap=1)
    first = environment.reset(1)
    (beginner,) = first.to_act
    seat = beginner
    for move in moves:
        result = environment.step({seat: move})
        seat = 1 - seat
    assert result.is_over
    assert result.rewards[beginner if winner == 0 else 1 - beginner] == 1.0
    assert sum(result.rewards.values()) == 0.0
    assert said in result.observation.texts[0]


def test_either_seat_begins_by_the_seed() -> None:
    assert {Nim().reset(seed).to_act for seed in range(20)} == {(0,), (1,)}


def test_an_item_is_scored_by_its_dataset() -> None:
    item = ReasoningGymItem(dataset="leg_counting")
    item.reset(3)
    answer = item._item["answer"]
    assert item.step(f" {answer}\n").reward == 1.0
    item.reset(3)
    assert item.step("no number").reward < 0.1


def test_the_last_tagged_answer_is_scored_and_nothing_without_a_tag() -> None:
    item = ReasoningGymItem(dataset="leg_counting", answer_tag="answer")
    item.reset(3)
    answer = item._item["answer"]
    assert item.step(f"<answer>1</answer> no: <answer>\n{answer} </answer> is it").reward == 1.0
    item.reset(3)
    assert item.step(answer).reward == 0.0


def test_a_higher_level_asks_for_more() -> None:
    lengths = []
    for level in (0, 2, 100):
        item = ReasoningGymItem(dataset="chain_sum", level=level)
        lengths.append(max(len(item.reset(seed).text) for seed in range(20)))
    assert lengths == sorted(set(lengths))


def test_fields_of_the_configuration_are_the_datasets_own() -> None:
    item = ReasoningGymItem(dataset="chain_sum", configuration={"min_terms": 9, "max_terms": 9}, level=None)
    assert item.reset(1).text.count("+") + item.reset(1).text.count("-") >= 8


def test_a_composite_draws_from_the_datasets_it_is_made_of() -> None:
    datasets = [{"name": "leg_counting"}, {"name": "chain_sum", "weight": 2.0, "config": {"min_terms": 2}}]
    item = ReasoningGymItem(dataset="composite", configuration={"datasets": datasets})
    assert item.reset(1).text
    assert item.step(item._item["answer"]).reward == 1.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dataset": "chain_sums"}, "none of reasoning-gym's: .*chain_sum, "),
        ({"dataset": "arc_agi", "level": -1}, "level = -1: give one or more levels from 0"),
        ({"dataset": "composite", "level": 1}, "no curriculum for 'composite'"),
    ],
)
def test_datasets_and_levels_that_there_are_not_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReasoningGymItem(**parameters)


def test_a_text_that_is_no_action_costs_the_turn_and_changes_nothing() -> None:
    environment = GymnasiumText(
        id="support.gymnasium_for_tests:Door-v0",
        actions={"open": 1, "close": 0},
        observations={"0": "closed", "1": "open"},
    )
    assert environment.reset(1).text == "closed"
    assert environment.step("kick").observation.text == "'kick' is no action. Say one of: open, close."
    result = environment.step(" open ")
    assert (result.observation.text, result.reward, result.is_over, result.truncated) == (
        "open",
        1.0,
        True,
        False,
    )
    environment.close()


def test_a_bound_of_gymnasium_truncates() -> None:
    environment = GymnasiumText(id="support.gymnasium_for_tests:Parrot-v0")
    environment.reset(1)
    results = [environment.step("a") for _ in range(3)]
    assert [result.truncated for result in results] == [False, False, True]
    environment.close()


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("Door", {}, r"actions = \{\}: map each text to a number of Discrete\(2\)"),
        ("Door", {"actions": {"open": 2}}, "actions = {'open': 2}"),
        ("Door", {"actions": {"open": 1}}, "observations has no text for 0"),
        ("Continuous", {}, "the actions of .* are Box"),
    ],
)
def test_spaces_without_texts_are_refused(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymnasiumText(id=f"support.gymnasium_for_tests:{name}-v0", **parameters)


def at_a_server(scenario: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with openenv_server() as url:
            await asyncio.wait_for(scenario(url), 30)

    asyncio.run(run())


def test_an_openenv_session_is_played_over_its_socket() -> None:
    async def scenario(url: str) -> None:
        session = OpenEnvSession(url=url)
        assert (await session.reset(2**40 + 5)).text == '{"text": "seed 1572945894", "turns": 0}'
        result = await session.step('{"message": "é"}')
        assert (result.observation.text, result.reward) == ('{"text": "é", "turns": 1}', 0.0)
        for said, answered in (
            ("no json", "An action is a JSON object: Expecting value"),
            ("[1]", "An action is a JSON object."),
            ('{"massage": "x"}', r"That is no action: message is missing (VALIDATION_ERROR)"),
        ):
            assert (await session.step(said)).observation.text.startswith(answered)
        last = await session.step('{"message": "end"}')
        assert (last.reward, last.is_over) == (1.0, True)
        assert (await session.reset(1)).text == f'{{"text": "seed {folded_seed(1, 31)}", "turns": 0}}'
        await session.close()

    at_a_server(scenario)


def test_an_error_of_an_openenv_server_and_its_end_raise() -> None:
    async def scenario(url: str) -> None:
        session = OpenEnvSession(url=f"{url}/", action_field="message", observation_field="txt")
        with pytest.raises(
            ValueError, match=r"observation_field = 'txt' is none of the server's: \['text', 'turns'\]"
        ):
            await session.reset(1)
        with pytest.raises(ConnectionError, match=r"answered step by error: it broke \(EXECUTION_ERROR\)"):
            await session.step("break")
        await session.close()

    at_a_server(scenario)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="url = 'localhost:8000'"):
        OpenEnvSession(url="localhost:8000")


def test_a_seed_is_folded_into_fewer_bits_by_a_hash_of_its_digits() -> None:
    # The first eight bytes of the sha256 of "1" are 6b 86 b2 73 ff 34 fc e1, and the last of them weighs most.
    assert folded_seed(1, 64) == 0xE1FC34FF73B2866B
    assert folded_seed(1, 31) == 0xE1FC34FF >> 1
    seeds = [*range(1000), *range(held_out_seeds, held_out_seeds + 1000)]
    for num_bits in (30, 31, 32):
        folded = [folded_seed(seed, num_bits) for seed in seeds]
        assert len(set(folded)) == len(seeds)
        assert all(0 <= seed < 2**num_bits for seed in folded)


def test_an_item_of_a_held_out_seed_is_none_of_training() -> None:
    item = ReasoningGymItem(dataset="chain_sum", configuration={"min_terms": 6, "max_terms": 6})
    training, held_out = (
        {item.reset(first + seed).text for seed in range(20)} for first in (0, held_out_seeds)
    )
    assert not training & held_out


def test_numpys_global_numbers_of_a_held_out_seed_are_none_of_training() -> None:
    draws = set()
    for seed in (5, held_out_seeds + 5):
        own = PrivateRandom(seed)
        with own:
            draws.add(float(np.random.random()))  # noqa: NPY002  # what packages draw from
    assert len(draws) == 2


def test_global_random_numbers_are_of_one_episode_alone() -> None:
    def drawn(own: PrivateRandom) -> tuple[float, float]:
        with own:
            return random.random(), float(np.random.random())  # noqa: NPY002  # what packages draw from

    before = random.getstate()
    alone = PrivateRandom(3)
    expected = [drawn(alone), drawn(alone)]
    first, other = PrivateRandom(3), PrivateRandom(4)
    mixed = [drawn(first), drawn(other), drawn(first)]
    assert [mixed[0], mixed[2]] == expected
    assert mixed[1] not in expected
    assert random.getstate() == before
