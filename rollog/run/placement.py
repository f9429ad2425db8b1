"""Which GPUs of this machine trainer and workers get.

Each gets devices of its own where there are enough: the trainer the first ones, one per rank, then each worker as many
as vLLM's parallel sizes make, or the first ones that `placement.trainer` leaves. Sharing a device is done only where
`placement.share` says so, or there is only one; then workers get shares of its memory that fit beside the trainer's.

    devices   ranks   workers   each   trainer   workers      share of the memory for vLLM
    0         1       1         1      -         -            (no GPU: nothing is placed)
    1         1       1         1      0         0            0.9 - 0.5 = 0.4
    2         1       1         1      0         1            vLLM's own choice
    8         2       3         2      0 1       2 3  4 5  6 7
    4         1       3         1      3         0 1 2        with placement.trainer = [3]
    2         1       2         1      refused, or with placement.share: 0 | 0, 1 | 0.4, 0.9
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.settings.generation import RolloutConfig
    from rollog.settings.run import PlacementConfig
    from rollog.settings.settings import Settings

_usable = 0.9
"""Of a device's memory; vLLM's own choice for a device that it has alone."""
_parallel_sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Arguments of vLLM; one engine takes as many devices as their product."""
_device_files = ("/dev/nvidia0", "/dev/dxg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Devices by their place in the list of those that this process sees.

    `memory_shares` has a share for each worker, None where vLLM's own choice is right.
    """

    trainer: tuple[int, ...]
    workers: tuple[tuple[int, ...], ...]
    memory_shares: tuple[float | None, ...]


def placed_here(settings: Settings, num_workers: int) -> tuple[Placement, Sequence[str]] | None:
    """Where `rollog up` starts its roles, and the names of the devices; None without a GPU. Raises ConfigError."""
    if settings.rollout.engine == "remote" and num_workers > 1:
        raise ConfigError(
            f'rollout.engine = "remote" has one server for one worker, and {num_workers} workers are asked for: start '
            "the others with `rollog rollout` and a rollout.server_address of their own"
        )
    names = visible_devices(os.environ)
    if not names:
        return None
    placement = place(
        len(names),
        num_ranks=settings.trainer.num_ranks,
        num_workers=num_workers,
        devices_per_worker=devices_per_worker(settings.rollout),
        config=settings.placement,
    )
    return placement, names


def devices_per_worker(rollout: RolloutConfig) -> int:
    """How many devices one worker's engine computes on. Raises ConfigError for a size that is none."""
    if rollout.engine in {"simulated", "remote"}:
        return 0
    if rollout.engine != "vllm":
        return 1
    return prod(_parallel_size(rollout.engine_args, name) for name in _parallel_sizes)


def has_devices() -> bool:
    """Whether this machine has devices for CUDA at all, whatever is shown of them."""
    return any(Path(path).exists() for path in _device_files)


def visible_devices(environment: Mapping[str, str]) -> list[str]:
    """Names of the devices that CUDA shows this process, as CUDA_VISIBLE_DEVICES takes them."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        # CUDA reads the list up to the first name that is none: -1 alone hides every device.
        names = (name.strip() for name in environment["CUDA_VISIBLE_DEVICES"].split(","))
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    if not has_devices():
        return []
    import torch  # noqa: PLC0415  # seconds, which only a machine with a GPU has to spend

    return [str(number) for number in range(torch.cuda.device_count())]


def _parallel_size(engine_args: Mapping[str, object], name: str) -> int:
    value = str(engine_args.get(name, 1))
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(
            f"rollout.engine_args.{name} = {value} is no number of GPUs: give an integer from 1 on"
        )
    return int(value)


def place(
    num_devices: int, *, num_ranks: int, num_workers: int, devices_per_worker: int, config: PlacementConfig
) -> Placement:
    """Devices for everybody, none for workers that take 0 each.

    Raises ConfigError where there are too few, or the settings name others.
    """
    trainer = config.trainer or tuple(range(min(num_ranks, num_devices)))
    if len(set(trainer)) < num_ranks:
        raise ConfigError(
            f"trainer.num_ranks = {num_ranks} needs as many devices, there are {len(set(trainer))}: lower it, or name "
            "devices in placement.trainer"
        )
    workers = config.workers if devices_per_worker else ((),) * num_workers
    workers = workers or _devices_of_workers(
        num_devices, trainer, num_workers, devices_per_worker, may_share=config.share or num_devices == 1
    )
    _check_named(num_devices, num_workers, devices_per_worker, trainer, workers)
    return Placement(
        trainer=trainer, workers=workers, memory_shares=_shares(trainer, workers, config.trainer_memory_share)
    )


def _devices_of_workers(
    num_devices: int, trainer: tuple[int, ...], num_workers: int, each: int, *, may_share: bool
) -> tuple[tuple[int, ...], ...]:
    free = [device for device in range(num_devices) if device not in trainer]
    needed = num_workers * each
    if needed <= len(free):
        return tuple(tuple(free[begin : begin + each]) for begin in range(0, needed, each))
    if not may_share or each > num_devices:
        taken = num_devices - len(free)
        raise ConfigError(
            f"{num_devices} GPUs are too few: {taken} for the trainer and {each} for each of {num_workers} workers "
            f"make {taken + needed}; start fewer with --workers, set placement.share = true, or lower "
            "the parallel sizes in rollout.engine_args"
        )
    # The trainer's devices come last: they are shared only when all others are taken.
    in_turn = [*reversed(free), *(device for device in reversed(range(num_devices)) if device in trainer)]
    return tuple(
        tuple(in_turn[(worker * each + part) % num_devices] for part in range(each))
        for worker in range(num_workers)
    )


def _check_named(
    num_devices: int,
    num_workers: int,
    each: int,
    trainer: tuple[int, ...],
    workers: tuple[tuple[int, ...], ...],
) -> None:
    named = {*trainer, *(device for devices in workers for device in devices)}
    if unknown := sorted(device for device in named if not 0 <= device < num_devices):
        raise ConfigError(
            f"[placement] names device {unknown[0]}; this process sees devices 0 to {num_devices - 1}"
        )
    if len(workers) != num_workers:
        raise ConfigError(
            f"placement.workers has devices for {len(workers)} workers, but {num_workers} are started: see --workers"
        )
    if wrong := [devices for devices in workers if len(set(devices)) != each]:
        raise ConfigError(
            f"placement.workers gives {list(wrong[0])} to one worker, which takes {each} (the parallel "
            "sizes in rollout.engine_args)"
        )


def _shares(
    trainer: tuple[int, ...], workers: tuple[tuple[int, ...], ...], for_trainer: float
) -> tuple[float | None, ...]:
    crowd = Counter(device for devices in workers for device in devices)

    def share(device: int) -> float:
        return (_usable - for_trainer * (device in trainer)) / crowd[device]

    least = [min(map(share, devices), default=_usable) for devices in workers]
    return tuple(None if found == _usable else round(found, 3) for found in least)
