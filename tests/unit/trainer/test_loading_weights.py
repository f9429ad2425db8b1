"""Published weights go into a model one tensor after another, from a file or from shards, and nothing else is drawn."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from support.exports import export_of
from support.small_training import make_model
from transformers import AutoModelForCausalLM, Qwen2Config

from rollog.kernel.errors import WeightsError
from rollog.kernel.weights import WeightsStore
from trainer.model.policy import load_model, load_weights, untied_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def written(directory: Path, tensors: dict[str, Tensor], form: str) -> Path:
    """Where these weights lie, in one file or as a manifest with small shards."""
    if form == "file":
        save_file(tensors, directory / "weights.safetensors")
        return directory / "weights.safetensors"
    store = WeightsStore((directory / "store").resolve().as_uri())
    notice = store.publish_tensors(0, export_of(tensors), most_bytes=16 << 20)
    return store.fetch(notice, directory / "fetched")


def other_weights(model_path: str) -> dict[str, Tensor]:
    model = AutoModelForCausalLM.from_pretrained(model_path)
    return {name: tensor.detach() + 1 for name, tensor in untied_tensors(model)}


@pytest.mark.parametrize("form", ["file", "manifest"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_loaded_model_is_that_of_its_weights_whatever_they_are_stored_in(
    tmp_path: Path, form: str, tied: bool
) -> None:
    path = make_model(tmp_path / "model", tied=tied)
    weights = other_weights(path)
    loaded = load_model(path, written(tmp_path, weights, form), "float32")
    found = dict(untied_tensors(loaded))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    layers = (loaded.get_input_embeddings(), loaded.get_output_embeddings())  # type: ignore[no-untyped-call]
    assert (layers[0].weight is layers[1].weight) is tied


def test_what_is_no_weight_is_that_of_a_model_with_values_of_its_own(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    loaded = load_model(path, written(tmp_path, other_weights(path), "file"), "float32")
    buffers = dict(AutoModelForCausalLM.from_pretrained(path).named_buffers())
    assert buffers
    found = dict(loaded.named_buffers())
    assert all(torch.equal(found[name], buffer) for name, buffer in buffers.items())


def test_weights_of_another_type_are_rounded_into_the_model(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    weights = other_weights(path)
    loaded = load_model(path, written(tmp_path, weights, "file"), "bfloat16")
    for name, tensor in untied_tensors(loaded):
        assert torch.equal(tensor, weights[name].bfloat16())


def test_weights_that_do_not_fit_replace_nothing(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    model = load_model(path, None, "float32")
    before = {name: tensor.clone() for name, tensor in untied_tensors(model)}
    weights = other_weights(path)
    last = max(weights)
    weights[last] = weights[last][:1]
    with pytest.raises(WeightsError, match=f"do not fit the model; differing tensors: .*{last}"):
        load_weights(model, written(tmp_path, weights, "file"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in untied_tensors(model))


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    file = written(tmp_path, other_weights(path), "file")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=f"weights {file} cannot be read"):
        load_model(path, file, "float32")


loading = """
import sys
from pathlib import Path
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM  # imported before memory is looked at
from trainer.model.policy import load_model


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


before = peak()
load_model(sys.argv[1], Path(sys.argv[2]), "float32")
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("form", ["file", "manifest"])
def test_a_model_is_loaded_in_the_memory_of_the_model_and_one_tensor(tmp_path: Path, form: str) -> None:
    config = Qwen2Config(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=10,
        tie_word_embeddings=True,
    )
    config.save_pretrained(tmp_path)
    with torch.random.fork_rng():
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    tensors = {name: tensor.detach() for name, tensor in untied_tensors(model)}
    mebibytes = sum(tensor.nbytes for tensor in tensors.values()) >> 20
    assert mebibytes > 150
    command = [sys.executable, "-c", loading, str(tmp_path), str(written(tmp_path, tensors, form))]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert 0.9 * mebibytes < int(ended.stdout) < mebibytes + 40
