"""Where a response ends because of its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.engines.ports import Generation, VersionSpan
from producers.engines.stop_texts import StopTexts, cut_off
from producers.rollout.prompts import ByteTokenizer
from schemas import FinishReason, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Sequence


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def stop_at(*texts: str) -> StopTexts:
    return StopTexts(texts, ByteTokenizer().decode)


def test_the_token_that_completes_a_text_is_the_last_one() -> None:
    assert stop_at("</answer>").num_tokens(bytes_of("<answer>7</answer> and more")) == len(
        "<answer>7</answer>"
    )


def test_the_earliest_of_several_texts_counts() -> None:
    assert stop_at("END", "b").num_tokens(bytes_of("abEND")) == 2


def test_a_response_without_them_goes_on() -> None:
    assert stop_at("END").num_tokens(bytes_of("EN D")) is None


def test_a_text_of_several_bytes_a_character_is_found_behind_a_long_response() -> None:
    response = "ä" * 500 + "→ fin"
    assert stop_at("→ fin").num_tokens(bytes_of(response)) == len(response.encode())


def test_only_tokens_that_were_not_seen_are_looked_at() -> None:
    asked: list[int] = []

    def text_of(token_ids: Sequence[int]) -> str:
        asked.append(len(token_ids))
        return ByteTokenizer().decode(token_ids)

    assert StopTexts(("x",), text_of).num_tokens(bytes_of("a" * 900 + "x"), num_seen=899) == 901
    assert len(asked) == 2
    assert max(asked) < 10


def test_what_was_made_behind_the_end_is_cut_off_with_its_spans() -> None:
    generation = Generation(
        token_ids=int32_array([1, 2, 3, 4, 5]),
        behaviour_logprobs=float32_array([-1, -2, -3, -4, -5]),
        spans=(
            VersionSpan(version=1, start=0, end=2),
            VersionSpan(version=2, start=2, end=4),
            VersionSpan(version=3, start=4, end=5),
        ),
        finish_reason=FinishReason.ABORT,
    )
    ended = cut_off(generation, 3)
    assert ended.token_ids.tolist() == [1, 2, 3]
    assert ended.behaviour_logprobs.tolist() == [-1, -2, -3]
    assert [(span.version, span.start, span.end) for span in ended.spans] == [(1, 0, 2), (2, 2, 3)]
    assert ended.finish_reason is FinishReason.STOP
