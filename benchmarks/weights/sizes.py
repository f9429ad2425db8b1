"""What publishing takes by size of the model: the trainer's thread, the write beside it, bytes, and memory."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING, get_args

from benchmarks.harness.figures import Figure, mean_figure, ratio_figure
from benchmarks.weights.large_engines import table_of
from benchmarks.weights.published_sizes import Form, Publishing, Size, in_own_process
from rollog.kernel.machine import free_memory_bytes
from rollog.kernel.versions.shards import shard_bytes
from rollog.kernel.versions.tensors import total_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape

largest_patch_share = 0.03
longest_seal_seconds = 0.4
"""8 % of a step of 5 s, at 0.5 billion parameters."""
_size_with_target = "0.5b"
_memory_beside_bytes = 3 << 30
"""Two shards, and room for everybody else."""


def measure_sizes(
    *,
    sizes: Mapping[str, ModelShape],
    home: Path,
    num_versions: int,
    on_progress: Callable[[str], None],
) -> tuple[list[Figure], dict[str, object]]:
    """All figures, and which sizes there was no room for."""
    figures: list[Figure] = []
    left_out: dict[str, str] = {}
    for name, shape in sizes.items():
        reason = why_left_out(total_bytes(table_of(shape)), free_memory_bytes(), shutil.disk_usage(home).free)
        if reason is not None:
            left_out[name] = reason
            on_progress(f"{name} is left out: {reason}")
            continue
        for form in get_args(Form):
            directory = home / secrets.token_hex(4)
            # Of a store elsewhere memory alone is told.
            num = 1 if form == "elsewhere" else num_versions
            size = in_own_process(Publishing(shape=shape, form=form, num_versions=num, directory=directory))
            found = figures_of(name, form, size)
            for figure in found:
                on_progress(figure.line())
            figures += found
    return figures, {"left_out": left_out}


def why_left_out(num_bytes: int, free_memory: int | None, free_disk: int) -> str | None:
    """Why versions of so many bytes are not published here; None where there is room."""
    if free_memory is not None and num_bytes + _memory_beside_bytes > free_memory:
        return f"{num_bytes + _memory_beside_bytes} bytes of memory are needed, {free_memory} are free"
    # The newest version beside the one before.
    if 2.2 * num_bytes > free_disk:
        return f"{2.2 * num_bytes:.0f} bytes of disk are needed, {free_disk} are free"
    return None


def figures_of(name: str, form: Form, size: Size) -> list[Figure]:
    """The figures of one size in one form. A version that became full where patches were asked for is left out."""
    stem = f"weights.sizes.{name}.{form}"
    pairs = [
        (version, floor)
        for version, floor in zip(size.versions, size.floors, strict=True)
        if version.is_patch == (form == "patch")
    ]
    memory = Figure(
        name=f"{stem}.memory",
        value=size.memory_bytes / size.num_bytes,
        unit=f"memory that publishing takes / {size.num_bytes / 1e9:.3g} GB of weights",
        target=(size.num_bytes + 2 * shard_bytes) / size.num_bytes,
        ideal=1.0,
        higher_is_better=False,
    )
    if not pairs or form == "elsewhere":
        return [memory]
    seals = [(version.seal_seconds, floor.copy_seconds) for version, floor in pairs]
    # A write hashes all tensors meanwhile; a patch is no more to write than what is stored.
    writes = [
        (version.write_seconds, max(floor.sha256_seconds, floor.write_seconds)) for version, floor in pairs
    ]
    return [
        mean_figure(
            f"{stem}.seal",
            "s on the trainer's thread for a version",
            [seconds for seconds, _ in seals],
            target=longest_seal_seconds if name == _size_with_target else None,
            ideal=sum(floor for _, floor in seals) / len(seals),
            higher_is_better=False,
        ),
        ratio_figure(
            f"{stem}.seal_ratio", "/ one copy of the bytes", seals, ideal=1.0, higher_is_better=False
        ),
        mean_figure(
            f"{stem}.write",
            "s beside the next step for a version",
            [seconds for seconds, _ in writes],
            ideal=sum(floor for _, floor in writes) / len(writes),
            higher_is_better=False,
        ),
        ratio_figure(
            f"{stem}.write_ratio",
            "/ the longer of one write of what is stored and the sha256 of the bytes",
            writes,
            ideal=1.0,
            higher_is_better=False,
        ),
        mean_figure(
            f"{stem}.stored",
            "of the bytes are stored for a version",
            [version.stored_bytes / size.num_bytes for version, _ in pairs],
            target=largest_patch_share if form == "patch" else None,
            higher_is_better=False,
        ),
        memory,
    ]
