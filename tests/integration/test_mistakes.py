"""Mistakes that a new user makes: each is refused with value, place and remedy, before anything is created."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from producers.processes.ending import process_tree
from rollog.cli.main import cli
from rollog.demo.word_models import save_word_tokenizer, special_tokens
from rollog.kernel.errors import RollogError, exit_status
from rollog.run.preflight.prompts import prompts
from rollog.settings.sources import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.engine

words = [*special_tokens, "what", "is", "the", "answer"]
good_rows = [{"id": f"a{n}", "prompt": "what is the answer", "answer": n} for n in range(4)]
good_config: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 256,
    "vocab_size": len(words),
}
good_reward = """
def right(prompt, response, *, answer, **fields):
    return float(str(answer) in response)


def divides(prompt, response, *, answer, **fields):
    return 1 / (answer - answer)


def forgets(prompt, response, *, answer, **fields):
    answer in response.split()[:1] if isinstance(answer, str) else None


def demands(prompt, response, *, solution, **fields):
    return float(solution == response)


def looks_up(prompt, response, **fields):
    return float(fields["solution"] == response)


def hides(prompt, response, **fields):
    return float("nan")


not_a_function = 3
"""


@dataclass
class Project:
    """A directory in which everything is as it should be, until a mistake is made."""

    place: Path
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    home: str = "state"
    text: str | None = None

    def set(self, section: str, **keys: Any) -> None:
        self.settings.setdefault(section, {}).update(keys)

    def write_rows(self, rows: list[Any]) -> None:
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (self.place / "train.jsonl").write_text("\n".join(lines))

    def write_config(self, **changes: Any) -> None:
        (self.place / "model" / "config.json").write_text(json.dumps({**good_config, **changes}))

    def file(self) -> str:
        def text(value: Any) -> str:
            if isinstance(value, dict):
                return "{ " + ", ".join(f"{key} = {text(each)}" for key, each in value.items()) + " }"
            return json.dumps(value)

        if self.text is not None:
            return self.text
        return "\n".join(
            f"[{section}]\n" + "\n".join(f"{key} = {text(value)}" for key, value in keys.items())
            for section, keys in self.settings.items()
        )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    made = Project(tmp_path)
    (tmp_path / "model").mkdir()
    made.write_config()
    (tmp_path / "model" / "model.safetensors").touch()
    save_word_tokenizer(tmp_path / "model", words, 256)
    made.write_rows(good_rows)
    (tmp_path / "my_rewards.py").write_text(good_reward)
    made.set("run", num_steps=2)
    made.set("model", path="model", max_context_tokens=128)
    made.set("data", train="train.jsonl", id_field="id")
    made.set("sampling", max_tokens=64)
    made.set("reward", function="my_rewards:right")
    made.set("broker", bootstrap_servers="127.0.0.1:1")
    return made


def refused(project: Project, *arguments: str) -> str:
    """What `rollog up` says; its broker is an address where nothing listens, and is never asked."""
    path = project.place / "run.toml"
    path.write_text(project.file())
    words = ["up", "--config", str(path), "--home", project.home, *arguments]
    result = CliRunner().invoke(cli, words)
    error = result.exception
    assert isinstance(error, RollogError), result.output
    assert exit_status(error) == 2, error
    return str(error)


def test_a_project_without_mistakes_is_only_stopped_by_its_broker(project: Project) -> None:
    path = project.place / "run.toml"
    path.write_text(project.file())

    words = ["up", "--config", str(path), "--home", "state"]
    result = CliRunner().invoke(cli, [*words, "--set", "broker.connect_timeout_seconds=0.2"])

    assert "no Kafka broker" in str(result.exception)


def children() -> set[int]:
    """Processes that this one has started and that are still there."""
    return set(process_tree(os.getpid()))


def cut_away(name: str) -> Callable[[Project], None]:
    return lambda project: (project.place / name).unlink()


mistakes: dict[str, tuple[Callable[[Project], Any], tuple[str, ...]]] = {
    "a key that does not exist": (
        lambda p: p.set("run", num_stepps=3),
        ("num_stepps", "run.toml", "num_steps"),
    ),
    "a word where a number belongs": (lambda p: p.set("run", num_steps="many"), ("run.num_steps", "integer")),
    "a file that is not TOML": (lambda p: setattr(p, "text", "[run\nnum_steps = 2"), ("run.toml", "line 1")),
    "no room for a prompt": (
        lambda p: p.set("sampling", max_tokens=128),
        ("sampling.max_tokens = 128", "lower"),
    ),
    "groups of one": (lambda p: p.set("groups", group_size=1), ("groups.group_size = 1", "raise")),
    "a model directory that is not there": (
        lambda p: p.set("model", path="./modell"),
        ("model.path = './modell'", "does not exist", "name a directory"),
    ),
    "a model directory without configuration": (
        cut_away("model/config.json"),
        ("model.path = 'model'", "config.json", "save_pretrained"),
    ),
    "a model directory without weights": (
        cut_away("model/model.safetensors"),
        ("model.path = 'model'", "has no weights", "save_pretrained"),
    ),
    "a model of an unknown type": (
        lambda p: p.write_config(model_type="qwen9"),
        ("model.path = 'model'", "'qwen9'", "known type"),
    ),
    "a model that vLLM cannot run on a CPU": (
        lambda p: p.write_config(num_attention_heads=4),
        ("attention heads of size 16", 'rollout.engine = "transformers"'),
    ),
    "a context beyond the model's positions": (
        lambda p: p.set("model", max_context_tokens=512),
        ("model.max_context_tokens = 512", "256", "lower it"),
    ),
    "a model by a name that is in no cache": (
        lambda p: p.set("model", path="nobody/no-model-of-that-name"),
        ("'nobody/no-model-of-that-name'", "HF_HUB_OFFLINE", "hf download"),
    ),
    "a model without tokenizer": (
        cut_away("model/tokenizer.json"),
        ("'model'", "tokenizer", "model.tokenizer"),
    ),
    "a data file that is not there": (
        lambda p: p.set("data", train="trane.jsonl"),
        ("data.train = 'trane.jsonl'", "does not exist", "name a JSONL"),
    ),
    "a data file without prompts": (
        lambda p: p.write_rows([]),
        ("train.jsonl", "no prompts", "at least one"),
    ),
    "a missing column": (
        lambda p: p.set("data", prompt_field="question"),
        ("train.jsonl, line 1", "'question'", "data.prompt_field"),
    ),
    "a misspelt column": (
        lambda p: p.set("data", prompt_field="promt"),
        ("data: train.jsonl, line 1", "'promt'", "did you mean 'prompt'?"),
    ),
    "a missing column of ids": (
        lambda p: p.set("data", id_field="name"),
        ("train.jsonl, line 1", "'name'", "data.id_field"),
    ),
    "an id that occurs twice": (
        lambda p: p.write_rows([good_rows[0], good_rows[0]]),
        ("train.jsonl", "'a0' occurs twice", "data.id_field"),
    ),
    "a line that is no JSON": (
        lambda p: p.write_rows([good_rows[0], "{'id': 1}"]),
        ("train.jsonl, line 2", "not JSON", "JSON object"),
    ),
    "messages without a role": (
        lambda p: p.write_rows([{"id": 1, "answer": 1, "prompt": [{"text": "what"}]}]),
        ("train.jsonl, line 1", "'prompt'", "role"),
    ),
    "messages for a model without chat template": (
        lambda p: p.write_rows([{"id": 1, "answer": 1, "prompt": [{"role": "user", "content": "what"}]}]),
        ("train.jsonl", "chat template", "role and content"),
    ),
    "prompts that leave no room": (
        lambda p: p.write_rows([{"id": 1, "answer": 1, "prompt": "what " * 100}]),
        ("prompt 1 has 100 tokens", "model.max_context_tokens = 128", "shorten the prompt"),
    ),
    "data without a reward function": (
        lambda p: p.settings.pop("reward"),
        ("needs a reward function", "reward.function"),
    ),
    "a reward function without its module": (
        lambda p: p.set("reward", function="right"),
        ("reward.function = 'right'", "module:function"),
    ),
    "a reward module that is not there": (
        lambda p: p.set("reward", function="my_reward:right"),
        (
            "reward.function = 'my_reward:right'",
            "cannot be imported",
            "current directory",
            "did you mean 'my_rewards'?",
        ),
    ),
    "a misspelt reward function": (
        lambda p: p.set("reward", function="my_rewards:rigth"),
        ("reward.function = 'my_rewards:rigth'", "no 'rigth'", "did you mean 'right'?"),
    ),
    "a reward that is no function": (
        lambda p: p.set("reward", function="my_rewards:not_a_function"),
        ("reward.function = 'my_rewards:not_a_function'", "not callable"),
    ),
    "a reward that raises": (
        lambda p: p.set("reward", function="my_rewards:divides"),
        ("'my_rewards:divides'", "prompt a0", "ZeroDivisionError at my_rewards.py, line 7", "must return"),
    ),
    "a reward that returns nothing": (
        lambda p: p.set("reward", function="my_rewards:forgets"),
        ("'my_rewards:forgets'", "no finite number", "None", "must return"),
    ),
    "a reward that is not finite": (
        lambda p: p.set("reward", function="my_rewards:hides"),
        ("'my_rewards:hides'", "no finite number", "nan"),
    ),
    "a reward for a column that is missing": (
        lambda p: p.set("reward", function="my_rewards:demands"),
        ("'my_rewards:demands'", "TypeError", "'solution'", "the row has the fields answer, id"),
    ),
    "a reward that looks for a column that is missing": (
        lambda p: p.set("reward", function="my_rewards:looks_up"),
        ("'my_rewards:looks_up'", "KeyError", "'solution'", "the row has the fields answer, id"),
    ),
    "a store of an unknown kind": (
        lambda p: p.set("weights", uri="s4://bucket/weights"),
        ("weights.uri = 's4://bucket/weights'", "s3://"),
    ),
    "a store that cannot be written": (
        lambda p: p.set("weights", uri="file:///proc/weights"),
        ("file:///proc/weights", "cannot be written", "may write"),
    ),
    "a state directory that cannot be written": (
        lambda p: setattr(p, "home", "/proc/state"),
        ("/proc/state", "cannot be written", "--home"),
    ),
    "an environment beside data and reward": (
        lambda p: p.set("environment", name="guess_number"),
        ("environment.name = 'guess_number'", "data.train = 'train.jsonl'", "leave one"),
    ),
    "an environment of a name that nothing has": (
        lambda p: plays(p, "gues_number"),
        ("'gues_number'", "guess_number", "module:factory"),
    ),
    "an environment with a parameter that it has not": (
        lambda p: plays(p, "guess_number", parameters={"larges": 9}),
        ("environment.name = 'guess_number'", "larges"),
    ),
    "a game for two that is played by one": (
        lambda p: plays(p, "nim"),
        ("environment.name = 'nim' has 2 seat(s)", "environment.seats = 1", "make them equal"),
    ),
    "groups that are no whole games": (
        lambda p: plays(p, "nim", seats=3),
        ("groups.group_size = ", "no multiple of environment.seats = 3"),
    ),
    "an environment whose first text fills the context": (
        lambda p: plays(p, "guess_number", max_context_tokens=66),
        ("environment.name = 'guess_number' begins with", "model.max_context_tokens = 66", "raise"),
    ),
    "a broker's address that is none": (
        lambda p: p.set("broker", bootstrap_servers="localhost"),
        ("'localhost'", "host:port", "--broker"),
    ),
}


def plays(project: Project, name: str, max_context_tokens: int = 128, **keys: Any) -> None:
    """An environment in place of data and reward function."""
    project.set("model", max_context_tokens=max_context_tokens)
    del project.settings["data"], project.settings["reward"]
    project.set("environment", name=name, **keys)


@pytest.mark.parametrize("mistake", mistakes)
def test_a_mistake_is_refused_before_anything_is_created(project: Project, mistake: str) -> None:
    make, said = mistakes[mistake]
    make(project)
    before = children()

    message = refused(project)

    assert all(part in message for part in said), message
    assert not (project.place / "state" / "kafka").exists()
    assert children() <= before


def test_words_that_the_tokenizer_lacks_are_warned_of(project: Project) -> None:
    project.write_rows([*good_rows[:2], {"id": "b", "prompt": "what is love", "answer": 1}])
    path = project.place / "run.toml"
    path.write_text(project.file())

    (finding,) = prompts(load_settings(path))

    assert not finding.refuses
    assert finding.what == "data.train"
    assert str(finding.remedy).startswith("1 of the first 3 prompts hold unknown tokens, first in prompt b: ")


def test_data_that_cannot_be_read_is_told_once(project: Project) -> None:
    project.set("data", prompt_field="promt")

    assert refused(project).count("line 1") == 1


def test_a_state_directory_that_cannot_be_written_is_all_that_is_told(project: Project) -> None:
    project.home = "/proc/state"

    message = refused(project)

    assert message.startswith("state directory: ")
    assert "store" not in message
    assert "/proc/tmp" not in message


def test_a_store_that_cannot_be_written_is_told_without_the_name_of_the_trial(project: Project) -> None:
    project.set("weights", uri="file:///proc/weights")

    assert "/proc/tmp" not in refused(project)


def test_a_state_directory_that_is_a_file_is_refused_with_a_remedy(project: Project) -> None:
    (project.place / "state").touch()

    result = CliRunner().invoke(cli, ["up", "--home", "state"])

    assert result.exit_code == 2
    assert "--home state is a file; name a directory" in " ".join(result.output.split())
