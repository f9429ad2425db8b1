"""What published weights must hold to be loaded into a model, decided before anything changes.

The path of a version is that of one safetensors file, or of a manifest beside its shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from rollog.kernel.errors import DataError, WeightsError
from rollog.kernel.versions.files import manifest_at

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rollog.kernel.versions.adapter import Adapter
    from rollog.kernel.versions.manifest import Manifest

Shape = tuple[int, ...]
_made_again = (
    "a worker fetches the version again where this is its copy; a file of the store has to be restored, or the trainer "
    "started again, which publishes the newest version again where it is damaged"
)


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Names and shapes of a model's parameters, and names that may be in a file without being needed.

    The optional ones are aliases of tied parameters and buffers that the model computes itself.
    """

    required: Mapping[str, Shape]
    optional: frozenset[str] = frozenset()


def model_tensors(model: str) -> ModelTensors:
    """The tensors of a Hugging Face causal language model, from its configuration alone (no weights are read).

    Raises DataError when the configuration cannot be read.
    """
    import torch  # noqa: PLC0415  # heavy, and only some engines come here
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    try:
        config = AutoConfig.from_pretrained(model)
        with torch.device("meta"):
            skeleton = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"model.path = {model!r} is no causal language model: {error}; name a directory with a config.json, "
            "or a Hugging Face model that is in the local cache"
        ) from error
    skeleton.tie_weights()
    required = {name: tuple(parameter.shape) for name, parameter in skeleton.named_parameters()}
    return ModelTensors(required, frozenset(skeleton.state_dict()) - required.keys())


def check_weights_file(path: Path, tensors: ModelTensors | None) -> Adapter | None:
    """Raises WeightsError unless a version holds exactly the model's tensors in their shapes; returns its adapter.

    Matrices of adapters may stand beside them. Without `tensors` it only has to be one that can be read.
    """
    manifest = manifest_at(path)
    if manifest is None:
        adapter, shapes = None, _shapes_in_file(path)
    else:
        _check_shards(path, manifest)
        adapter, shapes = manifest.adapter, _shapes_of(manifest)
    if tensors is None:
        return adapter
    if adapter is not None:
        # That they fit their layers was checked with the manifest.
        shapes = {name: shape for name, shape in shapes.items() if name not in adapter.tensor_names}
    missing = sorted(tensors.required.keys() - shapes.keys())
    unknown = sorted(shapes.keys() - tensors.required.keys() - tensors.optional)
    if missing or unknown:
        raise WeightsError(
            f"{path.name} does not fit the model: {_listing('missing', missing)}{_listing('unknown', unknown)}"
            "publish weights of the model that model.path names"
        )
    for name, shape in tensors.required.items():
        if shapes[name] != shape:
            raise WeightsError(
                f"{path.name} does not fit the model: {name} has shape {list(shapes[name])} instead of "
                f"{list(shape)}; publish weights of the model that model.path names"
            )
    return adapter


def shapes_in(path: Path) -> dict[str, Shape]:
    """The shape of each tensor of a version, from manifest or header. Raises WeightsError where there is none."""
    manifest = manifest_at(path)
    return _shapes_in_file(path) if manifest is None else _shapes_of(manifest)


def _check_shards(path: Path, manifest: Manifest) -> None:
    for shard in manifest.shards:
        file = path.with_name(shard.name)
        try:
            num_bytes = file.stat().st_size
        except OSError as error:
            raise WeightsError(f"{file} cannot be read: {error.strerror or error}; {_made_again}") from error
        if num_bytes != shard.num_bytes:
            raise WeightsError(f"{file} has {num_bytes} bytes instead of {shard.num_bytes}; {_made_again}")


def _shapes_of(manifest: Manifest) -> dict[str, Shape]:
    return {tensor.spec.name: tensor.spec.shape for tensor in manifest.tensors}


def _shapes_in_file(path: Path) -> dict[str, Shape]:
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path.name} is no readable safetensors file: {error}") from error


def _listing(word: str, names: list[str], most: int = 5) -> str:
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{word} {', '.join(names[:most])}{more}; "
