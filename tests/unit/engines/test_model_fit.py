"""What is asked of a model's files before a run begins, without a library that computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from producers.engines.model_fit import causal_model_types

root = Path(__file__).parents[3]

looks_at_a_run = """
import sys
from pathlib import Path
from rollog.run.preflight import look_at
from rollog.settings.settings import Settings

home = Path(sys.argv[1])
settings = Settings().changed(
    model={"path": str(home)},
    data={"train": str(home / "rows.jsonl")},
    reward={"function": "rewards:reward"},
    rollout={"engine": "transformers"},
)
for finding in look_at(settings, home):
    print(finding.what, finding.found, finding.remedy, sep="; ")
print("loaded:", *({"torch", "vllm", "deepspeed"} & sys.modules.keys()))
"""


def test_the_types_of_models_are_those_that_transformers_loads() -> None:
    from transformers.models.auto.modeling_auto import (  # noqa: PLC0415 - it loads torch
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    assert causal_model_types() == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()
    assert {"qwen2", "llama"} <= causal_model_types()


def test_before_a_run_begins_its_model_is_looked_at_without_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    save_file({"weight": np.zeros((500, 1000), dtype=np.float32)}, tmp_path / "model.safetensors")
    words = {"type": "WordLevel", "vocab": {"yes": 0, "no": 1}, "unk_token": "no"}
    tokenizer = {
        "version": "1.0",
        "model": words,
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "yes no"}) + "\n")
    (tmp_path / "rewards.py").write_text("def reward(*, prompt, response, **rest):\n    return 1.0\n")
    looked = subprocess.run(
        [sys.executable, "-c", looks_at_a_run, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        # With a GPU in sight torch is asked how many there are.
        env={**os.environ, "PYTHONPATH": str(root), "CUDA_VISIBLE_DEVICES": "-1"},
    )
    found = looked.stdout.splitlines()
    assert f"model; {tmp_path}: qwen2; None" in found
    assert any(line.startswith("memory; trainer and engine need at least 14 MB") for line in found), found
    assert any(line.startswith("data") and line.endswith("; None") for line in found), found
    assert found[-1] == "loaded:"
