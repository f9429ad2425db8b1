"""A version of a run as a model directory: the ledger's weights, and what transformers and vLLM need beside them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from producers.engines.vllm import installed_vllm, vllm_environment
from rollog.cli.main import cli
from rollog.demo.model import encode_words, model_config, new_model, save_tokenizer
from rollog.kernel.archived_weights import archived_weights
from rollog.kernel.broker.archive import ArchiveBroker
from rollog.kernel.called import word_for
from rollog.kernel.errors import DataError
from rollog.run.model_card import ModelFacts, example_lines, model_card, serving_command
from rollog.run.model_directory import (
    copy_tokenizer,
    place_tokenizer,
    require_loadable,
    write_configuration,
    write_generation_defaults,
    write_weights,
)

if TYPE_CHECKING:
    from click.testing import Result

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

recorded = Path(__file__).parents[1] / "data" / "recorded"


def exported(tmp_path: Path, *words: str, model: Path = recorded / "model") -> Result:
    archive = (
        "--archive",
        str(recorded / "run.zip"),
        "--home",
        str(tmp_path),
        "--set",
        f"model.path={model}",
    )
    return CliRunner().invoke(cli, ["export", *archive, *words])


def published(version: int, directory: Path) -> dict[str, torch.Tensor]:
    """The tensors of the version, out of the archive."""
    store = archived_weights(ArchiveBroker(recorded / "run.zip").file)
    name = store.names()[version]
    path = directory / name
    with store._fs.open(store._folder.path(name), "rb") as source:
        path.write_bytes(source.read())
    tensors: dict[str, torch.Tensor] = load_file(path)
    return tensors


@pytest.mark.parametrize(("words", "version"), [((), 4), (("--version", "1"), 1)])
def test_a_version_becomes_a_directory_that_transformers_loads(
    words: tuple[str, ...], version: int, tmp_path: Path
) -> None:
    target = tmp_path / "out" / "model"
    result = exported(tmp_path, "--model", str(target), *words)
    assert result.exit_code == 0, result.output
    assert f"version {version}" in result.output
    model = AutoModelForCausalLM.from_pretrained(target)
    weights = published(version, tmp_path)
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())
    facts = json.loads((target / "rollog.json").read_text())
    assert (facts["run"], facts["version"], facts["newest_version"]) == ("recorded", version, 4)
    assert facts["ledger_head"] == "32c15780fd7dcae64bfd0d8cf909be6f8eb50a58d25457e715eda1e7e6fde99f"
    assert facts["weights_sha256"] in (target / "README.md").read_text()
    assert str(recorded) not in (target / "README.md").read_text() + (target / "rollog.json").read_text()
    assert json.loads((target / "generation_config.json").read_text())["do_sample"] is True
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_a_tokenizer_that_auto_classes_rebuild_is_written_where_they_leave_it_alone(tmp_path: Path) -> None:
    # The recorded run's model is of type qwen2, whose tokenizer AutoTokenizer rebuilds beside a config.json.
    target = tmp_path / "model"
    result = exported(tmp_path, "--model", str(target))
    on_cpu = installed_vllm()[1]
    program = Path(sys.executable) if on_cpu else Path(sys.executable).with_name("vllm")
    served = serving_command(str(target), "tokenizer", on_cpu=on_cpu, program=word_for(program, Path.cwd()))
    assert f"serve it: {served}\n" in result.output
    card = (target / "README.md").read_text()
    assert 'AutoTokenizer.from_pretrained("./tokenizer")' in card
    assert "vllm serve . --tokenizer ./tokenizer" in card
    assert "python -m vllm.entrypoints.openai.api_server --model . --tokenizer ./tok" in card
    assert AutoTokenizer.from_pretrained(target).encode("12 + 3 =") != encode_words("12 + 3 =")
    assert AutoTokenizer.from_pretrained(target / "tokenizer").encode("12 + 3 =") == encode_words("12 + 3 =")


def test_the_example_of_the_card_answers_a_prompt_of_the_run(tmp_path: Path) -> None:
    target = tmp_path / "model"
    exported(tmp_path, "--model", str(target))
    (example,) = re.findall(r"```python\n(.*?)```", (target / "README.md").read_text(), flags=re.DOTALL)
    assert re.search(r"^prompt = '[\d ]+: \d+ ='$", example, flags=re.MULTILINE)
    # The example draws its answer, and one in many is an end at once.
    program = f"import torch\ntorch.manual_seed(0)\n{example}"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=target, check=True, capture_output=True, text=True
    )
    assert ended.stdout.strip()


def test_the_example_for_messages_uses_the_chat_template_as_the_run_did() -> None:
    asked: list[str | list[dict[str, Any]]] = [
        "a longer prompt " * 9,
        [{"role": "user", "content": "hi\n```"}],
    ]
    lines = example_lines(asked, 7, {"enable_thinking": False})
    assert lines[1] == "messages = [{'role': 'user', 'content': 'hi\\n```'}]"
    assert "**{'enable_thinking': False}" in lines[2]
    assert "max_new_tokens=7" in lines[4]
    compile("\n".join(lines), "example", "exec")
    assert all("\n" not in line for line in lines)
    assert example_lines(["x" * 3000], 7, {}) == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--version", "9"), "--version 9: the ledger has versions 0 to 4"),
        (("recorded", "FILE"), "name one thing"),
        ((), "exists already; name another directory"),
    ],
)
def test_what_cannot_be_exported_is_named_and_nothing_is_left(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    target = tmp_path / "model"
    if not words:
        target.mkdir()
        (target / "mine").touch()
    result = exported(tmp_path, "--model", str(target), *words)
    assert result.exit_code != 0
    assert said in str(result.exception)
    assert [path.name for path in tmp_path.rglob("*")] == (["model", "mine"] if not words else [])


def test_a_model_without_a_tokenizer_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    result = exported(tmp_path, "--model", str(tmp_path / "model"), model=empty)
    assert isinstance(result.exception, DataError)
    assert "has no tokenizer files; set model.tokenizer" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def a_config() -> LlamaConfig:
    """Of a type whose tokenizer AutoTokenizer leaves as it is, with heads that vLLM can compute on a CPU."""
    sizes = model_config().to_dict()
    del sizes["model_type"], sizes["architectures"]
    return LlamaConfig(**sizes | {"initializer_range": 0.3})


@pytest.fixture
def word_model(tmp_path: Path) -> Path:
    """A directory with a model of random weights and the tokenizer of the demo."""
    directory = tmp_path / "words"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(a_config()).save_pretrained(directory)  # type: ignore[no-untyped-call]
    save_tokenizer(directory)
    return directory


def assembled(model: Path, target: Path, *, most_bytes: int) -> Path:
    """The directory of a run that began with `model`, at version 0."""
    target.mkdir()
    write_configuration(target, json.dumps(a_config().to_dict(), default=str), "float32")
    write_weights(target, model / "model.safetensors", most_bytes)
    copy_tokenizer(target, str(model))
    write_generation_defaults(target, str(model), 1.0)
    return target


def test_large_weights_are_cut_into_shards_with_an_index(word_model: Path, tmp_path: Path) -> None:
    target = assembled(word_model, tmp_path / "model", most_bytes=200_000)
    shards = sorted(target.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert all(shard.stat().st_size < 450_000 for shard in shards)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {shard.name for shard in shards}
    loaded = AutoModelForCausalLM.from_pretrained(target).state_dict()
    expected = load_file(word_model / "model.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_a_tokenizer_that_auto_classes_leave_alone_is_read_as_by_the_run(
    word_model: Path, tmp_path: Path
) -> None:
    target = tmp_path / "model"
    target.mkdir()
    write_configuration(target, json.dumps(a_config().to_dict(), default=str), "float32")
    assert place_tokenizer(target, str(word_model), ["1 2 3 : 6 =", "12 + 30 ="]) is None
    assert not (target / "tokenizer").exists()
    assert AutoTokenizer.from_pretrained(target).encode("12 + 3 =") == encode_words("12 + 3 =")


def test_weights_of_another_model_than_the_recorded_configuration_are_refused(
    word_model: Path, tmp_path: Path
) -> None:
    target = assembled(word_model, tmp_path / "model", most_bytes=10**9)
    require_loadable(target, word_model / "model.safetensors")
    tensors = load_file(word_model / "model.safetensors")
    del tensors["model.norm.weight"]
    other = tmp_path / "other.safetensors"
    save_file(tensors, other)
    with pytest.raises(DataError, match=r"model\.norm\.weight"):
        require_loadable(target, other)


def test_a_name_of_code_in_the_recorded_configuration_is_left_out(tmp_path: Path) -> None:
    write_configuration(
        tmp_path, '{"model_type": "llama", "auto_map": {"AutoConfig": "evil.Evil"}}', "bfloat16"
    )
    assert json.loads((tmp_path / "config.json").read_text()) == {"model_type": "llama", "dtype": "bfloat16"}


def test_nothing_of_a_run_breaks_out_of_the_table_of_the_card() -> None:
    card = model_card(
        ModelFacts(
            run="r",
            version=1,
            newest_version=2,
            weights_sha256="0" * 64,
            ledger_head="1" * 64,
            ledger_sequence=7,
            is_closed=False,
            base_model="a | b\n# heading",
            data="d",
            algorithm="grpo",
            dtype="float32",
            samples_trained=3,
            held_out={"greedy": 0.5},
            versions={},
        )
    )
    assert "| base model | a \\| b # heading |" in card
    assert "| held-out mean reward, greedy | 0.500 |" in card
    assert "was not over" in card


vllm_answers = """
import json, sys, vllm
model, tokenizer, prompt = sys.argv[1:]
engine = vllm.LLM(model, tokenizer=tokenizer, max_model_len=64, enforce_eager=True, kv_cache_memory_bytes=1 << 26)
(answer,) = engine.generate([prompt], vllm.SamplingParams(temperature=0, max_tokens=8))
print(json.dumps({"prompt": answer.prompt_token_ids, "answer": list(answer.outputs[0].token_ids)}))
"""


def vllm_and_transformers_answer_alike(target: Path, tokenizer_place: Path, prompt: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_place)
    inputs = tokenizer(prompt, return_tensors="pt")
    model: Any = AutoModelForCausalLM.from_pretrained(target)
    inputs.pop("token_type_ids", None)
    tokens = model.generate(**inputs, max_new_tokens=8, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    ended = subprocess.run(
        [sys.executable, "-c", vllm_answers, str(target), str(tokenizer_place), prompt],
        env={**os.environ, **vllm_environment(on_cpu=True, num_threads=1)},
        check=True,
        capture_output=True,
        text=True,
    )
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["prompt"] == encode_words(prompt)
    assert said["answer"] == tokens.tolist()


@pytest.mark.slow
def test_vllm_and_transformers_answer_alike(word_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    target = assembled(word_model, tmp_path / "model", most_bytes=10**9)
    vllm_and_transformers_answer_alike(target, target, "1 2 3 : 6 =")


@pytest.mark.slow
def test_vllm_and_transformers_answer_alike_with_a_tokenizer_in_a_folder_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    words, target = tmp_path / "words", tmp_path / "model"
    new_model(0).save_pretrained(words)
    save_tokenizer(words)
    target.mkdir()
    write_configuration(target, (words / "config.json").read_text(), "float32")
    write_weights(target, words / "model.safetensors")
    assert place_tokenizer(target, str(words), ["12 + 30 ="]) == "tokenizer"
    vllm_and_transformers_answer_alike(target, target / "tokenizer", "9 8 3 : 14 =")
