"""The advised split, beside all other splits and beside the bounds."""

from __future__ import annotations

from typing import Any

import pytest

from rollog.planning.advice import advise, synthetic_groups, whole_groups
from rollog.planning.protocol_simulation import GroupRules
from rollog.planning.sizing import Workload, best_device_split, split_at
from rollog.planning.split_search import SplitPlayer

alphas = (0.0, 0.5, 1.0, 2.0, 4.0)


def a_workload(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "mean_seconds": 1.0,
        "max_seconds": 8.0,
        "train_seconds_per_sample": 1 / 3,
        "batch": 64,
        "group_size": 8,
        "alpha": 2.0,
        "num_devices": 16,
    }
    return Workload(**(values | changes))


def a_player(workload: Workload, rules: GroupRules | None = None) -> SplitPlayer:
    rules = rules or GroupRules()
    return SplitPlayer(synthetic_groups(workload, rules), workload, rules)


@pytest.mark.parametrize("num_devices", [2, 3, 24])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0])
def test_the_best_split_is_found_without_trying_all(num_devices: int, alpha: float) -> None:
    workload = a_workload(num_devices=num_devices, batch=32, alpha=alpha)
    found = a_player(workload).best()
    all_splits = a_player(workload)

    shortest = min(all_splits.at(number).step_seconds for number in range(1, num_devices))

    assert found.num_train_devices + found.num_rollout_devices == num_devices
    assert found == all_splits.at(found.num_train_devices)
    assert found.step_seconds <= shortest * 1.05


def test_every_alpha_has_one_split_and_none_is_worse_than_that_of_the_equation() -> None:
    workload = a_workload()
    played = advise(synthetic_groups(workload, GroupRules()), workload, alphas, rules=GroupRules())

    assert list(played.by_alpha) == list(alphas)
    for alpha, advice in played.by_alpha.items():
        assert advice.alpha == advice.plan.workload.alpha == alpha
        assert advice.advised.step_seconds <= advice.equation.step_seconds
        assert advice.speedup == played.turns_seconds / advice.advised.step_seconds
    steps = [advice.advised.step_seconds for advice in played.by_alpha.values()]
    assert steps == sorted(steps, reverse=True)


def test_where_few_rollouts_have_a_long_tail_the_bound_spares_too_many_devices_for_it() -> None:
    workload = a_workload(num_devices=64)
    player = a_player(workload)
    planned = best_device_split(workload)

    found = player.best()

    assert found.num_train_devices > planned.num_train_devices
    assert found.step_seconds < player.at(planned.num_train_devices).step_seconds / 1.5


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(("batch", "num_devices"), [(64, 64), (64, 16), (256, 16)])
def test_no_played_step_is_over_the_bound_or_under_the_trainer(
    alpha: float, batch: int, num_devices: int
) -> None:
    workload = a_workload(alpha=alpha, batch=batch, num_devices=num_devices)
    player = a_player(workload)

    for number in {1, num_devices // 4, best_device_split(workload).num_train_devices}:
        bounds = split_at(workload, number / num_devices)
        played = player.at(number).step_seconds
        assert bounds.train_seconds <= played * (1 + 1e-9)
        assert (
            played <= bounds.step_seconds_at_most * 1.02
        )  # the rollouts of these steps have not quite the mean


def test_filtered_groups_and_publishing_cost_time() -> None:
    workload = a_workload()
    groups = synthetic_groups(workload, GroupRules())

    def seconds(rules: GroupRules, publish_seconds: float = 0.0) -> float:
        player = SplitPlayer(groups, workload, rules, publish_seconds=publish_seconds)
        return player.best().step_seconds

    plain = seconds(GroupRules())
    assert seconds(GroupRules(pass_share=0.5)) > 1.3 * plain
    assert seconds(GroupRules(), publish_seconds=1.0) > plain


def test_taking_turns_is_generating_then_training_on_all_devices() -> None:
    workload = a_workload(mean_seconds=2.0, max_seconds=2.0, batch=16, num_devices=8)

    # 16 rollouts of 2 s on 8 slots, then 16 samples of 1/3 s on 8 devices.
    assert a_player(workload).taking_turns() == pytest.approx(4 + 2 / 3)


def test_groups_that_miss_rollouts_are_left_out_while_others_have_all() -> None:
    assert whole_groups([(1.0,), (2.0, 3.0)], 2) == [(2.0, 3.0)]
    assert whole_groups([(1.0,)], 2) == [(1.0,)]
