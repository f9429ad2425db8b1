"""One response out of several parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from producers.engines.stop_texts import StopTexts
from producers.rollout.resumption import ResumableResponse, resumed_seed
from schemas import FinishReason, SamplingParameters, float32_array, int32_array


def a_request(max_tokens: int = 8) -> GenerationRequest:
    sampling = SamplingParameters(temperature=0.7, max_tokens=max_tokens, stop_token_ids=(5, 6))
    return GenerationRequest(request_id="1.7/0", prompt_token_ids=[10, 11, 12], sampling=sampling, seed=7)


def a_part(tokens: list[int], version: int, finish_reason: FinishReason = FinishReason.ABORT) -> Generation:
    return Generation(
        token_ids=int32_array(tokens),
        behaviour_logprobs=float32_array([-0.1 * token for token in tokens]),
        spans=(VersionSpan(version=version, start=0, end=len(tokens)),) if tokens else (),
        finish_reason=finish_reason,
    )


def a_response(*parts: Generation, max_tokens: int = 8, max_context_tokens: int = 100) -> ResumableResponse:
    response = ResumableResponse(a_request(max_tokens), max_context_tokens=max_context_tokens)
    for part in parts:
        response.add(part)
    return response


def test_the_first_request_is_the_given_one() -> None:
    assert a_response().next_request() == a_request()


def test_a_resumed_request_has_the_earlier_tokens_in_its_prompt_and_only_the_rest_to_make() -> None:
    request = a_response(a_part([1, 2, 3], 0), a_part([4], 1)).next_request()
    assert list(request.prompt_token_ids) == [10, 11, 12, 1, 2, 3, 4]
    assert request.sampling == SamplingParameters(temperature=0.7, max_tokens=4, stop_token_ids=(5, 6))
    assert (request.request_id, request.seed) == ("1.7/0~2", resumed_seed(7, 2))


def test_a_stop_text_may_begin_before_a_resumption_and_end_behind_it() -> None:
    stop = StopTexts(("34",), lambda token_ids: "".join(map(str, token_ids)))
    response = ResumableResponse(replace(a_request(), stop=stop), max_context_tokens=100)
    response.add(a_part([1, 2, 3], 0))
    resumed = response.next_request().stop
    assert resumed is not None
    assert resumed.num_tokens([5, 4]) is None
    assert resumed.num_tokens([4, 5]) == 1


def test_seeds_of_resumptions_are_fixed_by_seed_and_number_and_differ() -> None:
    # sha256("7/1") begins with d3d2f579; read as a little-endian number and halved.
    assert resumed_seed(7, 1) == 0x79F5D2D3 >> 1
    seeds = [resumed_seed(seed, number) for seed in range(50) for number in range(1, 9)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 31 for seed in seeds)


def test_parts_are_joined_bit_for_bit_and_their_spans_shifted() -> None:
    parts = [a_part([1, 2, 3], 4), a_part([], 5), a_part([4], 6), a_part([7, 6], 9, FinishReason.STOP)]
    whole = a_response(*parts).generation
    assert whole.token_ids.tolist() == [1, 2, 3, 4, 7, 6]
    assert whole.behaviour_logprobs.dtype == np.dtype("<f4")
    assert whole.behaviour_logprobs.tobytes() == b"".join(part.behaviour_logprobs.tobytes() for part in parts)
    assert [(span.version, span.start, span.end) for span in whole.spans] == [(4, 0, 3), (6, 3, 4), (9, 4, 6)]
    assert whole.finish_reason is FinishReason.STOP


def test_neighbouring_spans_of_one_version_become_one() -> None:
    whole = a_response(a_part([1, 2], 4), a_part([3], 4)).generation
    assert [(span.version, span.start, span.end) for span in whole.spans] == [(4, 0, 3)]


def test_a_response_is_complete_when_it_ended_by_itself_or_no_token_has_room() -> None:
    assert not a_response(a_part([1, 2], 0)).is_complete
    assert a_response(a_part([1, 5], 0, FinishReason.STOP)).is_complete
    at_limit = a_response(a_part([1, 2], 0), a_part([3], 1), max_tokens=3)
    assert at_limit.is_complete
    assert at_limit.generation.finish_reason is FinishReason.LENGTH
    full_context = a_response(a_part([1, 2], 0), max_context_tokens=5)
    assert full_context.is_complete
    assert full_context.generation.finish_reason is FinishReason.LENGTH
    assert not a_response(a_part([1, 2], 0), max_context_tokens=6).is_complete


def test_a_response_without_a_token_can_go_on() -> None:
    response = a_response(a_part([], 0))
    assert (response.num_tokens, response.is_complete) == (0, False)
    assert response.next_request().sampling.max_tokens == 8
