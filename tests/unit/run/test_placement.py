"""Which GPUs each role is started with, told without a GPU by what it would be started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollog.kernel.errors import ConfigError
from rollog.run.local_run import role_specs
from rollog.run.placement import Placement, devices_per_worker, place, visible_devices
from rollog.settings.generation import RolloutConfig
from rollog.settings.run import PlacementConfig
from rollog.settings.settings import Settings


def placed(
    num_devices: int, num_ranks: int = 1, num_workers: int = 1, each: int = 1, **config: Any
) -> Placement:
    return place(
        num_devices,
        num_ranks=num_ranks,
        num_workers=num_workers,
        devices_per_worker=each,
        config=PlacementConfig(**config),
    )


def test_everybody_has_devices_of_its_own_where_there_are_enough() -> None:
    two = placed(2)
    assert (two.trainer, two.workers, two.memory_shares) == ((0,), ((1,),), (None,))
    node = placed(8, num_ranks=2, num_workers=3, each=2)
    assert (node.trainer, node.workers) == ((0, 1), ((2, 3), (4, 5), (6, 7)))
    assert node.memory_shares == (None, None, None)


def test_a_single_device_is_shared_with_memory_that_fits() -> None:
    one = placed(1)
    assert (one.trainer, one.workers, one.memory_shares) == ((0,), ((0,),), (0.4,))
    three = placed(1, num_workers=3, trainer_memory_share=0.3)
    assert three.memory_shares == (0.2, 0.2, 0.2)


def test_several_are_shared_only_when_told() -> None:
    with pytest.raises(
        ConfigError, match=r"2 GPUs are too few: 1 for the trainer and 1 for each of 2 workers"
    ):
        placed(2, num_workers=2)
    shared = placed(2, num_workers=2, share=True)
    assert (shared.trainer, shared.workers, shared.memory_shares) == ((0,), ((1,), (0,)), (None, 0.4))


def test_workers_have_the_devices_that_a_named_trainer_leaves() -> None:
    two = placed(2, trainer=(1,))
    assert (two.trainer, two.workers, two.memory_shares) == ((1,), ((0,),), (None,))
    four = placed(4, num_workers=3, trainer=(3,))
    assert (four.workers, four.memory_shares) == (((0,), (1,), (2,)), (None, None, None))
    between = placed(5, num_workers=2, each=2, trainer=(1,))
    assert between.workers == ((0, 2), (3, 4))


def test_a_named_trainer_shares_its_device_last() -> None:
    with pytest.raises(ConfigError, match=r"2 GPUs are too few: 1 for the trainer and 1 for each of 2"):
        placed(2, num_workers=2, trainer=(1,))
    shared = placed(2, num_workers=2, trainer=(1,), share=True)
    assert (shared.workers, shared.memory_shares) == (((0,), (1,)), (None, 0.4))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_devices": 2, "num_ranks": 3}, "trainer.num_ranks = 3 needs as many devices, there are 2"),
        ({"num_devices": 1, "each": 2}, "1 GPUs are too few"),
        ({"num_devices": 2, "trainer": (2,)}, r"names device 2; this process sees devices 0 to 1"),
        ({"num_devices": 2, "workers": ((0,), (1,))}, "devices for 2 workers, but 1 are started"),
        ({"num_devices": 3, "workers": ((1, 1),), "each": 2}, r"gives \[1, 1\] to one worker, which takes 2"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        placed(**arguments)


def test_devices_can_be_named() -> None:
    found = placed(4, num_workers=2, trainer=(3,), workers=((0,), (3,)))
    assert (found.trainer, found.workers, found.memory_shares) == ((3,), ((0,), (3,)), (None, 0.4))


def specs(monkeypatch: pytest.MonkeyPatch, visible: str, num_workers: int, **rollout: Any) -> dict[str, Any]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    settings = Settings().changed(run={"name": "first"}, rollout=rollout)
    found = role_specs(settings, "127.0.0.1:9092", Path("/home"), Path("/logs"), num_workers)
    return {spec.name: spec for spec in found}


def test_roles_are_started_with_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = specs(monkeypatch, "4,GPU-abc,7", num_workers=2)
    shown = {name: spec.environment["CUDA_VISIBLE_DEVICES"] for name, spec in roles.items()}
    assert shown == {"dispatcher": "", "rollout-0": "GPU-abc", "rollout-1": "7", "trainer": "4"}
    assert not any("gpu_memory_share" in word for spec in roles.values() for word in spec.command)


def test_a_worker_beside_the_trainer_gets_a_share_unless_the_settings_say_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "rollout.gpu_memory_share=0.4" in specs(monkeypatch, "0", 1)["rollout-0"].command
    chosen = specs(monkeypatch, "0", 1, engine_args={"gpu_memory_utilization": 0.3})["rollout-0"].command
    assert not any("gpu_memory_share" in word for word in chosen)


def test_without_a_gpu_nothing_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert all(spec.environment == {} for spec in specs(monkeypatch, "", 2).values())


@pytest.mark.parametrize(
    ("list_of_devices", "seen"),
    [("-1", []), ("0, 1,-1,2", ["0", "1"]), ("0,,1", ["0"]), ("2,GPU-abc", ["2", "GPU-abc"])],
)
def test_devices_behind_a_name_that_is_none_are_hidden(list_of_devices: str, seen: list[str]) -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": list_of_devices}) == seen


def test_a_simulated_engine_takes_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = placed(1, num_workers=2, each=0, workers=((0,),))
    assert (simulated.trainer, simulated.workers, simulated.memory_shares) == ((0,), ((), ()), (None, None))
    roles = specs(monkeypatch, "0,1", num_workers=8, engine="simulated")
    shown = {spec.environment["CUDA_VISIBLE_DEVICES"] for name, spec in roles.items() if name != "trainer"}
    assert shown == {""}
    assert roles["trainer"].environment["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_worker_takes_as_many_devices_as_its_parallel_sizes_make() -> None:
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "data_parallel_size": 2}
    assert devices_per_worker(RolloutConfig(engine_args=sizes)) == 12
    assert devices_per_worker(RolloutConfig()) == 1
    assert devices_per_worker(RolloutConfig(engine="transformers", engine_args=sizes)) == 1


@pytest.mark.parametrize("size", [0, -2, 1.5, "two", True])
def test_a_parallel_size_that_is_none_is_refused(size: Any) -> None:
    rollout = RolloutConfig(engine_args={"pipeline_parallel_size": size})
    with pytest.raises(ConfigError, match=r"rollout\.engine_args\.pipeline_parallel_size = .* is no number"):
        devices_per_worker(rollout)


def test_all_parallel_sizes_decide_what_a_role_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    roles = specs(monkeypatch, "0,1,2,3,4", num_workers=1, engine_args=sizes)
    assert roles["rollout-0"].environment["CUDA_VISIBLE_DEVICES"] == "1,2,3,4"
