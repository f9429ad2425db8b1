"""Preparation of the demo's files."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import AutoModelForCausalLM

from rollog.demo.countdown import check, problems
from rollog.demo.model import load_tokenizer
from rollog.demo.prepare import DemoFiles, prepare, prepare_model
from rollog.demo.settings import WarmStartSettings
from rollog.demo.warm_start import train
from rollog.demo.word_task import tasks
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine

short = WarmStartSettings(num_steps=2, batch_size=4)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def files(cache: Path) -> DemoFiles:
    return prepare(cache, 0, settings=short)


def all_bytes(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_datasets_hold_the_two_sides_of_the_split(files: DemoFiles) -> None:
    train, held_out = lines(files.train), lines(files.held_out)
    assert [line["id"] for line in train] == [p.problem_id for p in problems(held_out=False)]
    assert [line["id"] for line in held_out] == [p.problem_id for p in problems(held_out=True)]
    assert not {line["prompt"] for line in train} & {line["prompt"] for line in held_out}
    assert set(train[0]) == {"prompt", "numbers", "target", "id"}


def test_rows_are_what_the_reward_takes(files: DemoFiles) -> None:
    line = lines(files.train)[0]
    numbers, target = line["numbers"], line["target"]
    assert isinstance(numbers, list)
    assert isinstance(target, int)
    assert check(numbers, target, "").reward == 0.0


def test_the_model_directory_is_complete(files: DemoFiles) -> None:
    names = {path.name for path in files.model.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names


def test_the_saved_model_is_the_trained_one_and_loads_as_any_other(files: DemoFiles) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(files.model)
    trained = train(0, short).state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in loaded.state_dict().items())
    assert load_tokenizer(files.model).eos_token_id == loaded.config.eos_token_id


@pytest.mark.parametrize("task", ["guessing", "sums"])
def test_the_model_of_an_example_knows_the_words_of_its_task_and_is_made_once(task: str, cache: Path) -> None:
    directory = prepare_model(cache, task, settings=short)
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(directory), load_tokenizer(directory)
    words = " ".join(tasks[task].words)
    assert tokenizer.encode(words) == list(range(loaded.config.vocab_size))
    told: list[float] = []
    assert prepare_model(cache, task, on_progress=told.append, settings=short) == directory
    assert told == []


def test_other_users_may_read_the_files(files: DemoFiles) -> None:
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in files.model.parent.rglob("*"))


def test_the_same_seed_makes_the_same_bytes(files: DemoFiles, tmp_path: Path) -> None:
    again = prepare(tmp_path, 0, settings=short)
    assert all_bytes(again.model.parent) == all_bytes(files.model.parent)


def test_another_seed_or_setting_has_a_place_of_its_own(files: DemoFiles, cache: Path) -> None:
    other = prepare(cache, 1, settings=short)
    longer = prepare(cache, 0, settings=WarmStartSettings(num_steps=3, batch_size=4))
    assert len({files.model, other.model, longer.model}) == 3
    weights = {path.joinpath("model.safetensors").read_bytes() for path in (files.model, other.model)}
    assert len(weights) == 2


def test_a_second_call_finds_the_files_and_makes_nothing(files: DemoFiles, cache: Path) -> None:
    told: list[float] = []
    before = all_bytes(cache)
    assert prepare(cache, 0, told.append, settings=short) == files
    assert told == []
    assert all_bytes(cache) == before


def test_finding_the_files_does_not_import_torch(files: DemoFiles, cache: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rollog.demo.prepare import prepare; "
        "from rollog.demo.settings import WarmStartSettings; "
        f"files = prepare(Path({str(cache)!r}), 0, settings=WarmStartSettings(num_steps=2, batch_size=4)); "
        "print(files.model, 'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(files.model), "False"]


def test_an_interrupted_preparation_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    def interrupt(_fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, 0, interrupt, settings=short)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert prepare(tmp_path, 0, settings=short).model.is_dir()


def test_two_preparations_at_once_agree_on_one_result(tmp_path: Path) -> None:
    def count_steps(told: list[float]) -> int:
        prepare(tmp_path, 0, told.append, settings=short)
        return len(told)

    with ThreadPoolExecutor(2) as pool:  # the lock is the operating system's: threads see it as processes do
        told = sorted(pool.map(count_steps, ([], [])))
    assert told == [0, 2]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(DataError, match=str(blocked)):
        prepare(blocked, 0, settings=short)
