"""What the files of a model say about whether an engine can run it, told without loading it."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.engines.kv_cache import head_size
from producers.engines.model_files import model_file, read_json
from producers.engines.vllm import installed_vllm
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from rollog.settings.generation import RolloutConfig
    from rollog.settings.run import ModelConfig

_cpu_head_sizes = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What the attention of vLLM 0.32 on CPUs computes (`CPUAttentionBackend.get_supported_head_sizes`)."""
_module_of_types = "transformers.models.auto.modeling_auto"
_list_of_types = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_weights_files = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def check_model(model: ModelConfig, rollout: RolloutConfig) -> str:
    """A few words about a model that can be trained and generated from, as far as its files say.

    Raises DataError, naming value and remedy, for one that has no configuration or weights, that transformers does not
    know, or whose context or attention the engine cannot do; ConfigError where the engine is not installed.
    """
    assert model.path is not None
    fetch_config(model.path)
    config = read_json(model.path, "config.json")
    _check_type(model.path, config)
    _check_weights(model.path)
    if rollout.engine == "vllm":
        _, on_cpu = installed_vllm()
        _check_context(model, config)
        if on_cpu:
            _check_head_size(model.path, config)
    return f"{model.path}: {config.get('model_type')}"


def fetch_config(path: str) -> None:
    """Have the configuration of a model that is named on the Hugging Face hub in the local cache. Raises DataError."""
    if model_file(path, "config.json") is not None:
        return
    from huggingface_hub import constants, hf_hub_download  # noqa: PLC0415  # only for models given by name

    if constants.HF_HUB_OFFLINE:
        raise DataError(
            f"model.path = {path!r} is not in the cache of Hugging Face models, and HF_HUB_OFFLINE forbids to load it: "
            f"run `hf download {path}` where there is a network, or name a directory"
        )
    try:
        hf_hub_download(path, "config.json", etag_timeout=5.0)
    except Exception as error:  # the library raises errors of many libraries
        said = str(error).partition("\n")[0]
        raise DataError(
            f"model.path = {path!r} is in no cache and cannot be loaded from the Hugging Face hub "
            f"({type(error).__name__}: {said}): check the name, the network and HF_TOKEN, or name a directory"
        ) from error


def _check_type(path: str, config: dict[str, Any]) -> None:
    kind = config.get("model_type")
    if kind not in causal_model_types():
        raise DataError(
            f"model.path = {path!r} has model_type {kind!r} in config.json, which transformers knows as no "
            "causal language model; code that comes with a model is not run: give a model of a known type"
        )


def causal_model_types() -> frozenset[str]:
    """What `model_type` may be: the keys of transformers' list of causal language models.

    The list is read in the source of its module: to import that loads torch, for which whoever starts a run would wait
    seconds. Where it is written otherwise than as one literal, it is imported.
    """
    spec = find_spec(_module_of_types)
    if spec is not None and spec.origin is not None:
        source = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        for statement in source.body:
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List() as pairs], keywords=[])
                ) if name == _list_of_types:
                    return frozenset(dict(ast.literal_eval(pairs)))
    return frozenset(getattr(import_module(_module_of_types), _list_of_types))


def _check_weights(path: str) -> None:
    # Of a model that is named on the hub only the configuration is here as yet.
    if Path(path).expanduser().is_dir() and not any(model_file(path, name) for name in _weights_files):
        raise DataError(
            f"model.path = {path!r} has no weights, none of {', '.join(_weights_files)}: give a directory that "
            "save_pretrained() has written"
        )


def _check_context(model: ModelConfig, config: dict[str, Any]) -> None:
    longest = config.get("max_position_embeddings")
    scaled = config.get("rope_scaling") or (config.get("rope_parameters") or {}).get("factor")
    if isinstance(longest, int) and not scaled and model.max_context_tokens > longest:
        raise DataError(
            f"model.max_context_tokens = {model.max_context_tokens} is more than {longest}, the positions that "
            f"{model.path!r} has (max_position_embeddings in config.json): lower it"
        )


def _check_head_size(path: str, config: dict[str, Any]) -> None:
    size = head_size(config)
    if size is not None and size not in _cpu_head_sizes:
        raise DataError(
            f"model.path = {path!r} has attention heads of size {size}; vLLM on a CPU computes "
            f'{", ".join(map(str, _cpu_head_sizes))}: set rollout.engine = "transformers", or give another model'
        )
