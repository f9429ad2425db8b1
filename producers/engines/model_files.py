"""Small facts from the files of a Hugging Face model, read without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollog.kernel.errors import DataError


def model_file(model: str, name: str) -> Path | None:
    """Where a file of a model directory, or of a model in the local Hugging Face cache, lies."""
    directory = Path(model).expanduser()
    if directory.is_dir():
        path = directory / name
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  # only for models given by name
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        cached = try_to_load_from_cache(model, name)
    except HFValidationError as error:
        raise DataError(f"model.path = {model!r} is neither a directory nor the name of a model") from error
    return Path(cached) if isinstance(cached, str) else None


def read_json(model: str, name: str) -> dict[str, Any]:
    """A JSON object among the model's files; empty when there is no such file."""
    path = model_file(model, name)
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}; save the model again") from error
    return content if isinstance(content, dict) else {}


def end_token_ids(model: str) -> tuple[int, ...]:
    """Tokens that end a response, from config.json and generation_config.json."""
    token_ids: list[int] = []
    for name in ("config.json", "generation_config.json"):
        value = read_json(model, name).get("eos_token_id")
        token_ids.extend([value] if isinstance(value, int) else value or [])
    return tuple(dict.fromkeys(token_ids))
