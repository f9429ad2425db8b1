"""Stop texts of a task, as a worker looks for them with the tokenizer of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.worker_thread import Stage, running
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from producers.engines.simulated import SimulatedEngine
from producers.rollout.prompts import load_tokenizer
from schemas import FinishReason, SamplingParameters, Status

if TYPE_CHECKING:
    from pathlib import Path

num_words = 16


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    """Words w0 to w15, and behind them a special token that the model does not take for its end."""
    words = WordLevel({f"w{number}": number for number in range(num_words)}, unk_token="w0")
    built = Tokenizer(words)
    built.pre_tokenizer = WhitespaceSplit()
    built.add_special_tokens(["<|im_end|>"])
    built.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("stop", "last", "end_of_text"),
    [("<|im_end|>", num_words, ""), ("w7", 7, "w7"), ("7 <|im", num_words, "w7")],
)
def test_a_response_ends_with_a_special_token_that_is_a_stop_text(
    stage: Stage, tokenizer: Any, stop: str, last: int, end_of_text: str
) -> None:
    engine = SimulatedEngine(
        tokens_per_second=50_000,
        max_context_tokens=256,
        vocabulary_size=num_words + 1,
        length_of=lambda _: 200,
    )
    sampling = SamplingParameters(temperature=1.0, max_tokens=200, stop=(stop,))
    with running(stage, engine=engine, tokenizer=tokenizer):
        stage.give_grant()
        stage.wait_until_serving(0)
        stage.order(stage.task(0, sampling=sampling))
        sample = stage.sample()
    assert (sample.status, sample.finish_reason) == (Status.FINISHED, FinishReason.STOP)
    token_ids = sample.token_ids.tolist()
    assert len(token_ids) < 200
    assert token_ids[-1] == last
    # The reward function and the record have the text without special tokens.
    assert "<|im_end|>" not in (sample.response_text or "")
    assert (sample.response_text or "").endswith(end_of_text)
    assert stop in tokenizer.decode(token_ids, skip_special_tokens=False)
