"""Low-rank adapters of a version in vLLM: its own LoRA layers, where it has them for the model, else merged weights.

The matrices are handed over as a directory of peft, which vLLM reads. One adapter is there at a time, under one number:
requests that go on through a reload go on with the new one.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from producers.engines.changed_tensors import read_tensors
from producers.engines.model_files import read_json
from rollog.kernel.logs import get_logger
from rollog.kernel.versions.files import weights_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rollog.kernel.versions.adapter import Adapter

_log = get_logger("rollout")
_name, _number = "rollog", 1
without_lora = (
    "; with enable_lora = false in rollout.engine_args adapters are merged into the weights instead"
)
"""What helps where vLLM's layers for adapters do not fit a model."""


def lora_arguments(model: str, rank: int) -> dict[str, Any]:
    """What AsyncEngineArgs get for adapters of a rank; says in the log where vLLM will get merged weights."""
    if rank == 0:
        return {}
    size = next((size for size in _sizes() if size >= rank), None)
    if size is None or not _has_lora_layers(model):
        why = f"none of rank {rank}" if size is None else "none for this model"
        _log.warning(
            f"vLLM gets adapters merged into the weights: it has {why}. bfloat16 rounds most of them away"
        )
        return {}
    return {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": size}


def fits(adapter: Adapter | None, arguments: Mapping[str, Any]) -> bool:
    """Whether vLLM, started with these arguments, computes an adapter beside its layers."""
    if adapter is None or not arguments.get("enable_lora"):
        return False
    return adapter.rule == "linear" and adapter.rank <= int(arguments.get("max_lora_rank", 16))


def lora_request(directory: Path, *, in_place: bool = False) -> Any:
    """What vLLM knows the adapter by; `in_place` reads the directory, whatever it holds already."""
    from vllm.lora.request import LoRARequest  # noqa: PLC0415  # heavy

    return LoRARequest(_name, _number, str(directory), load_inplace=in_place)


@contextmanager
def adapter_directory(path: Path, adapter: Adapter, parent: Path) -> Iterator[Path]:
    """The matrices of a version as peft saves them, until the end of the block. Raises WeightsError, OSError."""
    from safetensors.torch import save_file  # noqa: PLC0415  # heavy

    directory = parent / "adapter"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    matrices = read_tensors(weights_files(path), adapter.tensor_names)
    save_file(
        {f"base_model.model.{name}": matrix for name, matrix in matrices},
        directory / "adapter_model.safetensors",
    )
    config = {
        "peft_type": "LORA",
        "r": adapter.rank,
        "lora_alpha": adapter.scaling * adapter.rank,
        "target_modules": sorted({layer.rpartition(".")[2] for layer in adapter.targets}),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _sizes() -> tuple[int, ...]:
    """Ranks that vLLM has room for."""
    from vllm.config.lora import MaxLoRARanks  # noqa: PLC0415  # heavy

    return tuple(sorted(get_args(MaxLoRARanks)))


def _has_lora_layers(model: str) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: PLC0415  # heavy
    from vllm.model_executor.models import ModelRegistry, supports_lora  # noqa: PLC0415  # heavy

    config = read_json(model, "config.json")
    names = config.get("architectures") or [
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(config.get("model_type")))
    ]
    registered = [ModelRegistry.models[name] for name in names if name in ModelRegistry.models]
    return bool(registered) and bool(supports_lora(registered[0].load_model_cls()))
