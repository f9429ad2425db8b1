"""A Hugging Face model directory from the weights of a version: configuration, tokenizer, generation defaults, shards.

What is not of the run (tokenizer, chat template, generation defaults) is copied from the directory or cached model
that the run began with. Nothing here imports or copies code of a model.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from producers.engines.model_files import end_token_ids, model_file, read_json
from producers.engines.weights_file import shapes_in
from producers.rollout.prompts import load_tokenizer
from rollog.kernel.errors import DataError
from rollog.kernel.versions.files import adapter_at, merged_tensors
from rollog.kernel.versions.merging import with_merged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

most_shard_bytes = 4_000_000_000
own_tokenizer_folder = "tokenizer"
_tokenizer_files = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def write_configuration(directory: Path, recorded: str, dtype: str) -> None:
    """config.json as the ledger's genesis has it, with the type that the weights have. Names of code are left out."""
    config = json.loads(recorded)
    config.pop("auto_map", None)
    config.pop("torch_dtype", None)
    write_json(directory / "config.json", {**config, "dtype": dtype})


def write_generation_defaults(directory: Path, model: str, temperature: float) -> None:
    """generation_config.json: the base model's, drawing as the run did, without truncation of the distribution."""
    base = read_json(model, "generation_config.json")
    ends = list(end_token_ids(model))
    for name in ("top_p", "top_k", "min_p", "repetition_penalty", "_from_model_config"):
        base.pop(name, None)
    drawn: dict[str, Any] = {"do_sample": True, "temperature": temperature}
    if ends:
        drawn["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    write_json(directory / "generation_config.json", {**base, **drawn})


def copy_tokenizer(directory: Path, tokenizer: str) -> None:
    """The tokenizer's files, chat template among them. Raises DataError where there are none."""
    found = [path for name in _tokenizer_files if (path := model_file(tokenizer, name)) is not None]
    if not found:
        raise DataError(f"{tokenizer!r} has no tokenizer files; set model.tokenizer to where they are")
    for path in found:
        shutil.copyfile(path, directory / path.name)


def write_weights(directory: Path, weights: Path, most_bytes: int = most_shard_bytes) -> int:
    """The tensors in shards of at most `most_bytes`, with their index; returns how many tensors there are.

    One shard is model.safetensors, without an index. The files are mapped, not read at once.
    """
    from huggingface_hub import save_torch_state_dict  # noqa: PLC0415  # heavy, and so is torch
    from safetensors.torch import load_file  # noqa: PLC0415

    tensors = merged_tensors(weights, load_file)
    adapter = adapter_at(weights)
    if adapter is not None:
        tensors = dict(with_merged(tensors.items(), adapter, tensors.__getitem__))
    save_torch_state_dict(tensors, directory, max_shard_size=most_bytes)
    for path in directory.glob("*.safetensors"):
        path.chmod(0o644)
    return len(tensors)


def require_loadable(directory: Path, weights: Path) -> None:
    """Compare the tensors with those of the model that config.json describes. Raises DataError."""
    import torch  # noqa: PLC0415
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    with torch.device("meta"):
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(AutoConfig.from_pretrained(directory))
    tied = set(model.all_tied_weights_keys or ())
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    adapter = adapter_at(weights)
    matrices = set() if adapter is None else adapter.tensor_names
    found = {name: shape for name, shape in shapes_in(weights).items() if name not in matrices}
    missing = expected.keys() - found.keys() - tied
    wrong = sorted(missing | {name for name, shape in found.items() if expected.get(name) != shape})
    if wrong:
        raise DataError(
            f"the weights and the recorded configuration are of different models: {wrong[0]} and "
            f"{len(wrong) - 1} more tensor(s) are missing, unknown or of another shape"
        )


def place_tokenizer(directory: Path, tokenizer: str, texts: Sequence[str]) -> str | None:
    """Copy the tokenizer's files to where AutoTokenizer, and so vLLM, splits `texts` as the run did.

    Returns the name of their own folder inside `directory`; None where the directory itself does. AutoTokenizer
    rebuilds the tokenizer of some architectures from their own class, whatever the files say, but only where a
    config.json names the architecture. Raises DataError where there are no files, or both places split otherwise.
    """
    copy_tokenizer(directory, tokenizer)
    if not _is_misread(directory, tokenizer, texts):
        return None
    own = directory / own_tokenizer_folder
    own.mkdir()
    copy_tokenizer(own, tokenizer)
    if _is_misread(own, tokenizer, texts):
        raise DataError(
            f"transformers' AutoTokenizer splits prompts of the run otherwise than the tokenizer of {tokenizer!r} did; "
            "set `tokenizer_class` in its tokenizer_config.json to the class that made it"
        )
    return own.name


def _is_misread(directory: Path, tokenizer: str, texts: Sequence[str]) -> bool:
    from transformers import AutoTokenizer  # noqa: PLC0415

    of_run, of_export = load_tokenizer(tokenizer), AutoTokenizer.from_pretrained(directory)
    return any(of_run.encode(text) != of_export.encode(text) for text in texts)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """One JSON object as a file of the directory."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
