"""Prompts: the right tokenizer, chat templates, and clear words for what does not fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.builders import a_task
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from producers.rollout.prompts import (
    ByteTokenizer,
    PromptRenderer,
    load_tokenizer,
    reward_fields,
    reward_prompt,
)
from rollog.kernel.errors import DataError
from schemas import Prompt, SamplingParameters

if TYPE_CHECKING:
    from pathlib import Path

words = ["<pad>", "<eos>", "<unk>", "1", "2", "3", "+", "=", "user", "assistant", "12"]
template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"


def save_word_tokenizer(directory: Path, **settings: object) -> Path:
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    return directory


@pytest.mark.parametrize("tokenizer_class", [None, "PreTrainedTokenizerFast", "Qwen2Tokenizer"])
def test_a_word_level_tokenizer_of_a_qwen2_model_keeps_its_words(
    tmp_path: Path, tokenizer_class: str | None
) -> None:
    settings = {} if tokenizer_class is None else {"tokenizer_class": tokenizer_class}
    renderer = PromptRenderer(
        load_tokenizer(str(save_word_tokenizer(tmp_path, **settings))), max_context_tokens=64
    )
    task = a_task(prompt=Prompt(prompt_id="0", text="12 + 3 ="))
    assert renderer.token_ids(task) == (10, 6, 5, 7)
    assert renderer.text([10, 6, 5, 1]) == "12 + 3"
    assert renderer.raw_text([10, 6, 5, 1]) == "12 + 3 <eos>"


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    renderer = PromptRenderer(
        load_tokenizer(str(save_word_tokenizer(tmp_path, chat_template=template))), max_context_tokens=64
    )
    messages = json.dumps([{"role": "user", "content": "1 + 2"}])
    task = a_task(prompt=Prompt(prompt_id="0", messages_json=messages))
    assert [words[token] for token in renderer.token_ids(task)] == ["user", "1", "+", "2", "assistant"]


def test_arguments_for_the_chat_template_reach_it(tmp_path: Path) -> None:
    with_end = template.replace("assistant", "{{ 'minus' if thinking else 'assistant' }}")
    tokenizer = load_tokenizer(str(save_word_tokenizer(tmp_path, chat_template=with_end)))
    prompt = Prompt(prompt_id="0", messages_json=json.dumps([{"role": "user", "content": "1"}]))

    def rendered(**arguments: bool) -> str:
        renderer = PromptRenderer(tokenizer, max_context_tokens=64, chat_template_kwargs=arguments)
        return str(tokenizer.decode(renderer.prompt_token_ids(prompt, 8)))

    assert rendered(thinking=False).endswith("assistant")
    assert not rendered(thinking=True).endswith("assistant")


def test_messages_without_a_chat_template_are_refused(tmp_path: Path) -> None:
    renderer = PromptRenderer(load_tokenizer(str(save_word_tokenizer(tmp_path))), max_context_tokens=64)
    messages = json.dumps([{"role": "user", "content": "1"}])
    with pytest.raises(DataError, match="chat template"):
        renderer.token_ids(a_task(prompt=Prompt(prompt_id="p7", messages_json=messages)))


def a_renderer(max_context_tokens: int = 32) -> PromptRenderer:
    return PromptRenderer(ByteTokenizer(), max_context_tokens=max_context_tokens)


def test_a_prompt_and_response_that_exceed_the_context_are_refused_with_the_numbers() -> None:
    task = a_task(prompt=Prompt(prompt_id="p7", text="x" * 20), sampling=sampling(13))
    with pytest.raises(DataError, match=r"p7 has 20 tokens and sampling\.max_tokens is 13.* = 32"):
        a_renderer().token_ids(task)
    assert len(a_renderer(33).token_ids(task)) == 20


def sampling(max_tokens: int) -> SamplingParameters:
    return SamplingParameters(temperature=1.0, max_tokens=max_tokens)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        a_renderer().token_ids(a_task(prompt=Prompt(prompt_id="p7", text="")))


def test_prompts_with_equal_ids_and_other_texts_are_told_apart() -> None:
    renderer = a_renderer()
    assert renderer.token_ids(a_task(prompt=Prompt(prompt_id="0", text="a"))) == (97,)
    assert renderer.token_ids(a_task(prompt=Prompt(prompt_id="0", text="b"))) == (98,)


@pytest.mark.parametrize("messages", ["no json", "[]", '{"role": "user"}', "[1]"])
def test_malformed_messages_are_refused(messages: str) -> None:
    with pytest.raises(DataError, match="p7"):
        reward_prompt(Prompt(prompt_id="p7", messages_json=messages))


@pytest.mark.parametrize("fields", ["no json", "[1]"])
def test_malformed_reward_inputs_are_refused(fields: str) -> None:
    with pytest.raises(DataError, match="p7"):
        reward_fields(Prompt(prompt_id="p7", text="x", reward_inputs_json=fields))


def test_a_directory_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.tokenizer"):
        load_tokenizer(str(tmp_path))
