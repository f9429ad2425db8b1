"""What is compared to show what asynchronous training brings: the same batches on the same 64 devices at every alpha.

Pure. Devices are shared out as `rollog plan` advises for a recorded run, within 5 % of its best step (a test plays
them); they stay the same from one measurement to the next.
"""

from __future__ import annotations

from typing import Literal

from benchmarks.harness.variant import Variant
from benchmarks.scheduling.comparisons import Comparison

alphas: tuple[float | Literal["auto"], ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, "auto")
largest_auto_alpha = 4.0
"""Where alpha is found by control it ends up near its bound, so the devices are shared out for that."""

num_devices = 64
train_devices = {0.0: 29, 0.5: 25, 1.0: 21, 2.0: 16, 4.0: 16, 8.0: 16}
"""How many of the devices train, by alpha."""
num_groups = 8
group_size = 8
num_steps = 40

_mean_seconds = 20.0
_median_seconds = _mean_seconds / 2**0.5
"""Of a lognormal whose coefficient of variation is 1."""
_longest_seconds = 8 * _mean_seconds
_train_seconds_per_sample = _mean_seconds / 3


def training_comparisons(num_seeds: int, *, steps: int = num_steps) -> list[Comparison]:
    """Each alpha against synchronous training on devices that take turns, and against alpha 0 on shared devices."""
    turns = _variant("training.turns", num_slots=num_devices, num_train_devices=num_devices, steps=steps)
    shared = [_shared(alpha, steps) for alpha in alphas]
    against_turns = [
        Comparison(name=mode.name, baseline=turns, mode=mode, num_seeds=num_seeds) for mode in shared
    ]
    against_zero = [
        Comparison(name=f"{mode.name}.over_alpha_0", baseline=shared[0], mode=mode, num_seeds=num_seeds)
        for mode in shared[1:]
    ]
    return [*against_turns, *against_zero]


def _shared(alpha: float | Literal["auto"], steps: int) -> Variant:
    num_train_devices = train_devices[largest_auto_alpha if alpha == "auto" else alpha]
    return _variant(
        f"training.alpha_{alpha if alpha == 'auto' else format(alpha, 'g')}",
        num_slots=num_devices - num_train_devices,
        num_train_devices=num_train_devices,
        alpha=alpha,
        steps=steps,
    )


def _variant(
    name: str,
    *,
    num_slots: int,
    num_train_devices: int,
    steps: int,
    alpha: float | Literal["auto"] = 0.0,
) -> Variant:
    return Variant(
        name=name,
        num_groups=num_groups,
        group_size=group_size,
        slots_per_worker=num_slots,
        num_steps=steps,
        alpha=alpha,
        train_seconds=num_groups * group_size * _train_seconds_per_sample / num_train_devices,
        median_seconds=_median_seconds,
        variation=1.0,
        longest_seconds=_longest_seconds,
    )
