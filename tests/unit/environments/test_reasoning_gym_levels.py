"""How hard an item of reasoning-gym is: a level, one of several by the seed, or easy ones first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from producers.dispatcher.episode_seeds import held_out_seeds

reasoning_gym = pytest.importorskip("reasoning_gym")

from producers.environments.adapters.reasoning_gym_items import ReasoningGymItem  # noqa: E402  # needs the package

no_scores_of_their_own = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Datasets of several right answers, which do not say one."""
takes_anything_for_no = {"game_of_life_halting"}
refused_levels = {
    "caesar_cipher": {2, 3},
    "knight_swap": {0, 1, 2, 3, 4},
    "modulo_grid": {1},
    "rubiks_cube": {4},
    "survo": {2, 3},
}
"""Levels of a curriculum whose configuration the dataset itself refuses."""


def sums(**parameters: Any) -> ReasoningGymItem:
    return ReasoningGymItem(dataset="chain_sum", **parameters)


def num_terms(item: ReasoningGymItem, seed: int) -> int:
    return item.reset(seed).text.count(" + ") + item.reset(seed).text.count(" - ") + 1


def test_each_seed_has_one_level_of_a_list_in_every_instance() -> None:
    first, other = (sums(level=[0, 2, 5]) for _ in range(2))
    seeds = [*range(200), *range(held_out_seeds, held_out_seeds + 200)]
    levels = [first.level_of(seed) for seed in seeds]
    assert levels == [other.level_of(seed) for seed in seeds]
    assert min(Counter(levels[:200]).values()) > 40
    assert min(Counter(levels[200:]).values()) > 40
    assert set(levels) == {0, 2, 5}


def test_a_level_that_stands_twice_comes_twice_as_often() -> None:
    item = sums(level=[0, 0, 5])
    counted = Counter(item.level_of(seed) for seed in range(3000))
    assert 1800 < counted[0] < 2200


def test_easy_levels_come_first_and_all_others_seeds_are_of_any_level() -> None:
    item = sums(level=[0, 3, 6], seeds_per_level=50)
    assert [item.level_of(seed) for seed in (0, 49, 50, 99, 100, 149)] == [0, 0, 3, 3, 6, 6]
    assert {item.level_of(seed) for seed in range(150, 200)} == {0, 3, 6}
    assert {item.level_of(held_out_seeds + seed) for seed in range(50)} == {0, 3, 6}


def test_the_item_is_of_the_level_that_the_observation_tells() -> None:
    item = sums(level=[0, 5], seeds_per_level=20)
    assert [item.reset(seed).info["level"] for seed in (3, 23)] == [0, 5]
    assert {num_terms(item, seed) for seed in range(20)} == {2}
    assert max(num_terms(item, seed) for seed in range(20, 40)) > 4


def test_a_level_in_a_list_of_its_own_gives_the_items_of_that_level() -> None:
    seeds = range(30)
    assert [sums(level=4).reset(seed) for seed in seeds] == [sums(level=[4]).reset(seed) for seed in seeds]


def test_fields_that_are_given_win_over_those_of_the_level() -> None:
    item = sums(level=3, configuration={"min_terms": 5, "max_digits": 1})
    assert {num_terms(item, seed) for seed in range(20)} == {5}
    words = " ".join(item.reset(seed).text.partition(": ")[2] for seed in range(20)).split()
    assert max(len(word) for word in words) == 1


def test_a_field_that_is_given_makes_a_refused_level_one_that_there_is() -> None:
    item = ReasoningGymItem(dataset="caesar_cipher", level=2, configuration={"max_rotation": 25})
    assert item.reset(1).text


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"level": []}, r"level = \[\]: give one or more levels"),
        ({"level": "hard"}, r"level = hard: give one or more levels"),
        ({"level": [0, -1]}, r"level = \[0, -1\]: give one or more levels from 0"),
        ({"level": 1, "seeds_per_level": 5}, r"seeds_per_level = 5 with level = 1: .* a list of levels"),
        ({"seeds_per_level": 5}, r"seeds_per_level = 5 with level = None"),
        ({"level": [0, 1], "seeds_per_level": 0}, r"seeds_per_level = 0 .*: give 1 or more"),
        (
            {"level": 2, "configuration": {"min_terms": 9}},
            r"level = 2: chain_sum refuses .*max_terms must be >= min_terms.*; give the field in `configuration`",
        ),
    ],
)
def test_what_no_level_can_be_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sums(**parameters)


def num_levels(name: str) -> int:
    attributes = reasoning_gym.factory.create_curriculum(name).attributes.values()
    return max(len(attribute.levels) for attribute in attributes)


def test_every_level_of_every_curriculum_is_accepted_or_known_to_be_refused() -> None:
    names = sorted(reasoning_gym.factory.CURRICULA)
    assert len(names) == 102
    found: dict[str, set[int]] = {}
    for name in names:
        for level in range(num_levels(name)):
            try:
                ReasoningGymItem(dataset=name, level=level)
            except ValueError:
                found.setdefault(name, set()).add(level)
    assert found == refused_levels


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # one of the packages reads its data so
def test_every_dataset_asks_and_scores() -> None:
    names = sorted(reasoning_gym.factory.DATASETS)
    assert len(names) == 106
    for name in names:
        if name == "composite":
            continue
        item = ReasoningGymItem(dataset=name)
        assert item.reset(5).text
        result = item.step("no answer (((")
        assert result.is_over
        assert 0.0 <= result.reward < (2 if name in takes_anything_for_no else 0.99), name
        if name not in no_scores_of_their_own:
            item.reset(5)
            assert item.step(item._item["answer"]).reward >= 0.99, name


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # the same
@pytest.mark.parametrize("name", sorted(set(reasoning_gym.factory.CURRICULA) - {"knight_swap"}))
def test_every_curriculum_asks_and_scores_at_its_first_levels(name: str) -> None:
    levels = [level for level in (0, 1) if level not in refused_levels.get(name, set())]
    item = ReasoningGymItem(dataset=name, level=levels, seeds_per_level=1)
    for seed, level in enumerate(levels):
        asked = item.reset(seed)
        assert asked.text
        assert asked.info == {"dataset": name, "level": level}
        assert item.reset(seed) == asked
        if name not in no_scores_of_their_own:
            assert item.step(item._item["answer"]).reward >= 0.99
