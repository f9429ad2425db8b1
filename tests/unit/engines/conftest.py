"""What the tests of engines share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.remote_engine import model_config

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's directory with its configuration, and a file of weights that only a pretended server takes."""
    (tmp_path / "config.json").write_text(json.dumps(model_config))
    (tmp_path / "v.safetensors").write_bytes(b"weights")
    return tmp_path
