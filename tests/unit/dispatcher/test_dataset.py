"""Prompts from files, and their order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from producers.dispatcher.dataset import PromptOrder, load_prompts
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from schemas import Prompt


def load(path: Path, *, prompt_field: str = "prompt", id_field: str | None = None) -> list[Prompt]:
    return load_prompts(str(path), split="train", prompt_field=prompt_field, id_field=id_field)


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_text_prompts_carry_the_other_fields_to_the_reward(tmp_path: Path) -> None:
    (prompt,) = load(written(tmp_path, '{"prompt": "1 + 1 =", "answer": 2}'))
    assert (prompt.text, prompt.messages_json, prompt.prompt_id) == ("1 + 1 =", None, "1")
    assert json.loads(prompt.reward_inputs_json) == {"answer": 2}


def test_chat_prompts_keep_their_messages(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (prompt,) = load(written(tmp_path, json.dumps({"prompt": messages})))
    assert prompt.text is None
    assert json.loads(prompt.messages_json or "") == messages


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "line 2: not JSON"),
        ('["a"]', "line 2: list instead of"),
        ('{"question": "x"}', "line 2: no field 'prompt'"),
        ('{"prompt": 3}', "line 2: field 'prompt' is neither"),
        ('{"prompt": []}', "line 2: field 'prompt' is neither"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        load(written(tmp_path, '{"prompt": "fine"}', line))


def test_ids_must_exist_and_be_unique(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": "a", "id": 1}', '{"prompt": "b", "id": 1}')
    with pytest.raises(DataError, match="'1' occurs twice"):
        load(path, id_field="id")
    with pytest.raises(DataError, match="no field 'key'"):
        load(path, id_field="key")


def test_missing_unknown_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="no prompts"):
        load(written(tmp_path, ""))
    other = tmp_path / "prompts.csv"
    other.write_text("prompt\n")
    with pytest.raises(DataError, match="unknown kind of file"):
        load(other)


def test_parquet_files_are_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "prompts.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "answer": [1, 2]}), path)
    prompts = load(path)
    assert [(prompt.text, prompt.prompt_id) for prompt in prompts] == [("a", "1"), ("b", "2")]
    path.write_bytes(b"PAR1 broken")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load(path)


def test_each_epoch_visits_every_prompt_once_in_an_order_of_its_own() -> None:
    order = PromptOrder(num_prompts=20, seed=3, num_epochs=2)
    first, second = ([order.prompt_index(group) for group in range(start, start + 20)] for start in (0, 20))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert order.num_groups == 40
    again = PromptOrder(num_prompts=20, seed=3)
    assert [again.prompt_index(group) for group in range(20, 40)] == second
    assert again.num_groups is None


def test_without_shuffling_the_file_gives_the_order() -> None:
    order = PromptOrder(num_prompts=3, seed=0, shuffle=False)
    assert [order.prompt_index(group) for group in range(5)] == [0, 1, 2, 0, 1]


def test_a_system_prompt_comes_before_the_messages_of_prompts_that_have_none(tmp_path: Path) -> None:
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "b"}]
    lines = ({"prompt": "a"}, {"prompt": [{"role": "user", "content": "b"}]}, {"prompt": own})
    path = written(tmp_path, *map(json.dumps, lines))
    prompts = load_prompts(
        str(path), split="train", prompt_field="prompt", id_field=None, system_prompt="be brief"
    )

    assert [json.loads(prompt.messages_json or "") for prompt in prompts] == [
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "b"}],
        own,
    ]
    assert all(prompt.text is None for prompt in prompts)


def test_a_system_prompt_does_not_hide_what_is_wrong_with_a_prompt(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": 3}')
    with pytest.raises(DataError, match="line 1: field 'prompt' is neither"):
        load_prompts(str(path), split="train", prompt_field="prompt", id_field=None, system_prompt="be brief")
