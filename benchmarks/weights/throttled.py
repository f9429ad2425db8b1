"""What a slow store costs a run: its step rate beside that with the same store at full speed."""

from __future__ import annotations

import secrets
import shutil
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure, ratio_figure
from benchmarks.weights.elsewhere import Channel, store_elsewhere
from benchmarks.weights.large_engines import table_of
from benchmarks.weights.large_runs import Way, a_job, settling_steps, steps_of
from rollog.kernel.versions.chains import cumulative_every
from rollog.kernel.versions.tensors import total_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape

published_bits_per_second = 200e6
published_seconds = 5.0
published_steps = 2 * cumulative_every + settling_steps
"""Two versions of them are stored as the changes since version 0, too."""
published_full_steps = 6
least_rate = 0.9


def measure_throttled(
    *,
    shape: ModelShape,
    home: Path,
    seed: int,
    on_progress: Callable[[str], None],
    bits_per_second: float = published_bits_per_second,
    step_seconds: float = published_seconds,
    num_steps: int = published_steps,
    num_full_steps: int = published_full_steps,
) -> list[Figure]:
    """Patches at both speeds, full forms at the slow one; trainer and worker share the store's channel."""

    def seconds(channel: Channel, num_steps: int, *, patches: bool) -> list[float]:
        store = home / secrets.token_hex(4)
        way = Way(shape=shape, patches=patches, store=store_elsewhere(store, channel))
        job = a_job("throttled", step_seconds=step_seconds, num_steps=num_steps, seed=seed)
        found = steps_of(job, way, home).seconds
        shutil.rmtree(store)
        on_progress(
            f"{'patches' if patches else 'full forms'}: {fmean(found):.2f} s a step, "
            f"{(channel.num_written + channel.num_read) / 1e6:.0f} MB moved"
        )
        return found

    rate = bits_per_second / 8
    full_speed = seconds(Channel(), num_steps, patches=True)
    slow = seconds(Channel(rate), num_steps, patches=True)
    slow_in_full = seconds(Channel(rate), num_full_steps, patches=False)
    # Seconds of the steps whose version, and that before, are small patches: the first cumulative one comes later.
    between = cumulative_every - settling_steps - 1
    full_seconds = total_bytes(table_of(shape)) / rate
    unit = f"step rate at {bits_per_second / 1e6:g} Mbit/s / at full speed"
    return [
        ratio_figure(
            "weights.throttled.patches",
            f"{unit}, cumulative patches every {cumulative_every} versions included",
            list(zip(full_speed, slow, strict=True)),
            target=least_rate,
            ideal=1.0,
        ),
        ratio_figure(
            "weights.throttled.between",
            f"{unit}, versions 3 to {cumulative_every - 1} alone",
            list(zip(full_speed[:between], slow[:between], strict=True)),
            target=least_rate,
            ideal=1.0,
        ),
        ratio_figure(
            "weights.throttled.full",
            f"{unit}, every version in full",
            list(zip(full_speed, slow_in_full, strict=False)),
            ideal=step_seconds / max(step_seconds, full_seconds),
        ),
    ]
