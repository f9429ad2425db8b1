"""Whether memory and disk of this machine have room for a model and what a run writes of it.

It only warns: what a run really takes depends on lengths, and on what else runs here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from producers.engines.model_files import model_file
from rollog.kernel.disk_room import free_bytes
from rollog.kernel.machine import memory_bytes
from rollog.kernel.sizes import readable_bytes
from rollog.run.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollog.settings.settings import Settings

_bytes_of_type = {"float32": 4, "bfloat16": 2}
_optimizer_bytes = 12
"""Of a parameter: master weights and both moments of Adam, in float32."""


def room(settings: Settings, home: Path, *, memory: Callable[[], int | None] = memory_bytes) -> list[Finding]:
    """Memory that trainer and engine need at least, and disk that versions and checkpoints take, against what is here.

    Empty where the model's files are not on this machine, which the check of the model says.
    """
    stored = _stored_bytes(settings.model.path)
    if stored is None or settings.rollout.engine == "simulated":
        return []
    return [*_memory(settings, stored, memory()), *_disk(settings, home, stored)]


def _memory(settings: Settings, stored: int, there: int | None) -> list[Finding]:
    import torch  # noqa: PLC0415  # heavy

    if there is None or torch.cuda.is_available():
        return []
    # Weights and gradients in training, and the engine's weights. The files are taken to be of the same type.
    parameters = stored // _bytes_of_type[settings.model.dtype]
    needed = 3 * stored + parameters * _optimizer_bytes * (settings.trainer.lora_rank == 0)
    found = f"trainer and engine need at least {readable_bytes(needed)}, there are {readable_bytes(there)}"
    remedy = (
        'use a smaller model, model.dtype = "bfloat16", trainer.lora_rank, or a machine with more memory'
        if needed > there
        else None
    )
    return [Finding(what="memory", found=found, remedy=remedy, is_needed=False)]


def _disk(settings: Settings, home: Path, stored: int) -> list[Finding]:
    num_versions = settings.run.num_steps + 1
    uri = urlsplit(settings.weights.uri or home.resolve().as_uri())
    if uri.scheme not in ("file", ""):
        return []
    free = free_bytes(unquote(uri.path))
    needed = num_versions * stored
    found = f"{num_versions} versions of {readable_bytes(stored)}, {readable_bytes(free)} are free"
    remedy = (
        "name a larger store with weights.uri, or take fewer steps (run.num_steps)" if needed > free else None
    )
    return [Finding(what="disk for weights", found=found, remedy=remedy, is_needed=False)]


def _stored_bytes(model: str | None) -> int | None:
    """Bytes of a model's weights files; None where they are not here."""
    config = None if model is None else model_file(model, "config.json")
    if config is None:
        return None
    return sum(path.stat().st_size for path in config.parent.glob("*.safetensors")) or None
