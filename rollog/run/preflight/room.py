"""Whether memory and disk of this machine have room for a model and what a run writes of it.

It only warns: what a run really takes depends on lengths, and on what else runs here.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from producers.engines.model_files import model_file, read_json
from producers.engines.weights_file import shapes_in
from rollog.kernel.disk_room import free_bytes
from rollog.kernel.errors import WeightsError
from rollog.kernel.machine import memory_bytes
from rollog.kernel.sizes import readable_bytes
from rollog.kernel.versions.shards import shard_bytes
from rollog.run.finding import Finding
from rollog.run.placement import has_devices, visible_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.settings.settings import Settings

_bytes_of_type = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_optimizer_bytes = 12
"""Of a parameter: master weights and both moments of Adam, in float32."""


def room(settings: Settings, home: Path, *, memory: Callable[[], int | None] = memory_bytes) -> list[Finding]:
    """Memory that trainer and engine need at least, and disk that versions and checkpoints take, against what is here.

    Empty where the model's files are not on this machine, which the check of the model says.
    """
    num_parameters = _num_parameters(settings.model.path)
    if num_parameters is None or settings.rollout.engine == "simulated":
        return []
    return [*_memory(settings, num_parameters, memory()), *_disk(settings, home, num_parameters)]


def _memory(settings: Settings, num_parameters: int, there: int | None) -> list[Finding]:
    if find_spec("torch") is None:
        return []  # that it is missing is said elsewhere
    if there is None or (has_devices() and visible_devices(os.environ)):
        return []
    # Weights and gradients in training, the copy that is published, and the engine's weights where it is here.
    num_copies = 3 if settings.rollout.engine == "remote" else 4
    each = _version_bytes(settings, num_parameters)
    needed = num_copies * each
    if settings.trainer.lora_rank == 0:
        needed += num_parameters * (_optimizer_bytes + _wider_gradient_bytes(settings))
        if settings.weights.patches == "auto" and settings.model.dtype != "float32" and each <= shard_bytes:
            needed += each  # the version before is compared with the one that is published
    found = f"trainer and engine need at least {readable_bytes(needed)}, there are {readable_bytes(there)}"
    remedy = (
        'use a smaller model, model.dtype = "bfloat16", trainer.lora_rank, or a machine with more memory'
        if needed > there
        else None
    )
    return [Finding(what="memory", found=found, remedy=remedy, is_needed=False)]


def _wider_gradient_bytes(settings: Settings) -> int:
    """By how much the gradient of a parameter is longer than the parameter."""
    if settings.trainer.gradient_dtype == "model":
        return 0
    return max(_bytes_of_type["float32"] - _bytes_of_type[settings.model.dtype], 0)


def _disk(settings: Settings, home: Path, num_parameters: int) -> list[Finding]:
    num_versions = settings.run.num_steps + 1
    uri = urlsplit(settings.weights.uri or home.resolve().as_uri())
    if uri.scheme not in ("file", ""):
        return []
    free = free_bytes(unquote(uri.path))
    each = _version_bytes(settings, num_parameters)
    needed = num_versions * each
    found = f"{num_versions} versions of {readable_bytes(each)}, {readable_bytes(free)} are free"
    remedy = (
        "name a larger store with weights.uri, or take fewer steps (run.num_steps)" if needed > free else None
    )
    return [Finding(what="disk for weights", found=found, remedy=remedy, is_needed=False)]


def _version_bytes(settings: Settings, num_parameters: int) -> int:
    """Bytes of all weights in the type of the run, whatever type the model's files have."""
    return num_parameters * _bytes_of_type[settings.model.dtype]


def _num_parameters(model: str | None) -> int | None:
    """Parameters in a model's weights files; None where these are not here."""
    config = None if model is None else model_file(model, "config.json")
    if model is None or config is None:
        return None
    files = sorted(config.parent.glob("*.safetensors"))
    try:
        counted = sum(prod(shape) for path in files for shape in shapes_in(path).values())
    except WeightsError:
        counted = 0
    return counted or _num_parameters_by_size(
        model, files or sorted(config.parent.glob("pytorch_model*.bin"))
    )


def _num_parameters_by_size(model: str, files: list[Path]) -> int | None:
    """What files without a readable header hold, if they are of the type that the model's configuration says."""
    config = read_json(model, "config.json")
    stored_as = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    # transformers takes float32 where nothing is said.
    return sum(path.stat().st_size for path in files) // _bytes_of_type.get(stored_as, 4) or None
