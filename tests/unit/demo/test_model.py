"""The demo's tokenizer and model."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from rollog.demo.countdown import demonstration, problems
from rollog.demo.model import (
    encode_words,
    load_tokenizer,
    max_context_tokens,
    new_model,
    save_tokenizer,
    vocabulary,
)
from rollog.demo.word_models import eos_token_id, pad_token_id, unknown_token_id

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(directory)
    return load_tokenizer(directory)


def test_every_prompt_and_response_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(0)
    for problem in problems(held_out=True):
        for text in (problem.prompt, demonstration(problem, rng, stop_after_hit=0.3, stop_after_miss=0.3)):
            token_ids = tokenizer.encode(text)
            assert token_ids == encode_words(text)
            assert len(token_ids) == len(text.split())
            assert tokenizer.decode(token_ids) == text


def test_the_end_token_is_special_and_left_out_of_text(tokenizer: PreTrainedTokenizerFast) -> None:
    token_ids = [*encode_words("- 4 + 12 y"), eos_token_id]
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "- 4 + 12 y"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (eos_token_id, pad_token_id)


def test_unknown_words_become_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.encode("7 28 y") == [*encode_words("7"), unknown_token_id, *encode_words("y")]


def test_the_vocabulary_holds_each_word_once() -> None:
    assert len(vocabulary) == len(set(vocabulary)) == 38
    assert [vocabulary[index] for index in (pad_token_id, eos_token_id, unknown_token_id)] == [
        "<pad>",
        "<eos>",
        "<unk>",
    ]


def test_the_longest_response_fits_the_context() -> None:
    longest = max(
        len(problem.prompt.split())
        + len(demonstration(problem, random.Random(0), stop_after_hit=0.0, stop_after_miss=0.0).split())
        for problem in problems(held_out=False)
    )
    assert longest < max_context_tokens


def test_a_new_model_depends_on_its_seed_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = new_model(1), new_model(1), new_model(2)
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(parameter.numel() for parameter in first.parameters()) == 399_232
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert first.lm_head.weight is first.model.embed_tokens.weight
