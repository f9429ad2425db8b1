"""An engine that remembers the input of every token it samples: what a recorded session is held against.

Every sampled token has a logprob of its own, which names it in whatever is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.engines.ports import Generation, VersionSpan
from schemas import FinishReason, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.sessions.recording import Recording


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One token as the engine sampled it: after these ids, under this version."""

    ids_before: tuple[int, ...]
    token_id: int
    version: int


@dataclass
class RememberingEngine:
    sampled: dict[float, SampledToken] = field(default_factory=dict)
    wasted: set[float] = field(default_factory=set)

    def generate(
        self,
        input_ids: Sequence[int],
        token_ids: Sequence[int],
        *,
        versions: Sequence[int] | None = None,
        finish_reason: FinishReason = FinishReason.STOP,
    ) -> Generation:
        """Sample these tokens, each under its version (0 by default)."""
        labels = list(versions or [0] * len(token_ids))
        logprobs = [-(len(self.sampled) + at + 1) / 1024 for at in range(len(token_ids))]
        for at, (token_id, version) in enumerate(zip(token_ids, labels, strict=True)):
            before = (*input_ids, *token_ids[:at])
            self.sampled[logprobs[at]] = SampledToken(before, token_id, version)
        return Generation(
            token_ids=int32_array(token_ids),
            behaviour_logprobs=float32_array(logprobs),
            spans=_spans(labels),
            finish_reason=finish_reason,
        )


def _spans(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    starts = [at for at, version in enumerate(versions) if not at or versions[at - 1] != version]
    return tuple(
        VersionSpan(version=versions[start], start=start, end=end)
        for start, end in zip(starts, [*starts[1:], len(versions)], strict=False)
    )


def check_recording(recording: Recording, sampled: Mapping[float, SampledToken]) -> None:
    """A recording says of every sampled token what the engine remembers, and says it once."""
    found: list[float] = []
    num_trained = 0
    for number, rows in enumerate(recording.sequences):
        ids = recording.ids(number)
        first = len(ids) - len(rows.token_ids)
        versions = [segment.version for segment in rows.segments for _ in range(segment.start, segment.end)]
        assert len(versions) == len(rows.token_ids) == len(rows.loss_mask) == len(rows.behaviour_logprobs)
        assert rows.behaviour_logprobs[0] != 0.0
        assert rows.behaviour_logprobs[-1] != 0.0
        for at, logprob in enumerate(rows.behaviour_logprobs.tolist()):
            if logprob == 0.0:
                assert rows.loss_mask[at] == 0
                assert versions[at] == versions[at - 1]
                continue
            token = sampled[logprob]
            found.append(logprob)
            assert (*ids[: first + at], ids[first + at]) == (*token.ids_before, token.token_id)
            assert versions[at] == token.version
            num_trained += int(rows.loss_mask[at])
        num_masked = sum(
            turn.num_tokens for turn in recording.turns if turn.sequence == number and turn.untrained is None
        )
        assert num_masked == int(rows.loss_mask.sum())
    assert len(found) == len(set(found)) == sum(turn.num_tokens for turn in recording.turns)
    assert num_trained == recording.trained_tokens
    untrained = sum(recording.untrained_tokens.values())
    assert len(sampled) == recording.trained_tokens + untrained + recording.wasted_tokens
