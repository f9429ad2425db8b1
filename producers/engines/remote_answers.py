"""What an inference server answers to a generation, checked before any of it counts. Pure.

Nothing is believed that can be compared: the prompt comes back and must be the one that was sent, ids lie in the
vocabulary, each log-probability belongs to its token and is a number, and the spans of weights cover the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from producers.engines.ports import Generation, VersionSpan
from rollog.kernel.errors import EngineDied, EngineError
from schemas import FinishReason, float32_array, int32_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas import Float32Array

_finish_reasons = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_no_logprob = -9999.0
"""What vLLM writes where it has no log-probability, minus infinity or no number."""
_most_logprob = 1e-4
"""Above 0 by rounding alone."""


@dataclass(frozen=True, slots=True)
class MarkedSpan:
    """Response tokens [start, end) that were computed while the server's weights were called `mark`."""

    mark: str
    start: int
    end: int


def prompt_logprobs_in(answer: Any, token_ids: Sequence[int]) -> Float32Array:
    """The log-probability of each token of a prompt, 0 for the first one. Raises EngineError."""
    entries = answer.get("prompt_logprobs") if isinstance(answer, dict) else None
    if not isinstance(entries, list) or len(entries) != len(token_ids):
        raise EngineError("the server answered without log-probabilities of the prompt: is it vLLM 0.32?")
    logprobs = [0.0]
    for token_id, entry in zip(token_ids[1:], entries[1:], strict=True):
        told = entry.get(str(token_id)) if isinstance(entry, dict) else None
        logprob = told.get("logprob") if isinstance(told, dict) else None
        if not isinstance(logprob, float | int):
            raise EngineError(f"the server has no log-probability of the prompt's token {token_id}")
        logprobs.append(float(logprob))
    return float32_array(logprobs)


@dataclass(slots=True)
class Answer:
    """One response as it arrives: whole, or piece after piece. `spans` and `finish_reason` come with the last piece."""

    prompt_token_ids: Sequence[int]
    vocabulary_size: int
    most_tokens: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: tuple[MarkedSpan, ...] = ()
    finish_reason: FinishReason | None = None
    _has_prompt: bool = False

    def add(self, piece: Any) -> None:
        """Take a piece. Raises EngineError where it is not what the request asked for."""
        try:
            self._add(piece)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"the server answered in a form that vLLM 0.32 does not have: {error!r}"
            ) from error

    def _add(self, piece: Any) -> None:
        choices = piece.get("choices") if isinstance(piece, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise EngineError("the server answered without exactly one response: is it vLLM 0.32?")
        if self.finish_reason is not None:
            raise EngineError("the server answered more after the end of the response")
        self._check_prompt(piece.get("prompt_token_ids"))
        self._add_tokens(choices[0])
        if choices[0].get("finish_reason") is not None:
            self._end(choices[0])

    def whole(self) -> Answer:
        """Itself, when it is complete. Raises EngineError."""
        if self.finish_reason is None:
            raise EngineError("the server ended its answer before the end of the response")
        return self

    def _check_prompt(self, told: Any) -> None:
        if told is None and self._has_prompt:
            return  # only the first piece of a streamed answer has it
        if told != list(self.prompt_token_ids):
            raise EngineError("the server answered to another prompt than the one that was sent")
        self._has_prompt = True

    def _add_tokens(self, choice: dict[str, Any]) -> None:
        token_ids = choice.get("token_ids") or []
        entries = (choice.get("logprobs") or {}).get("content")
        if token_ids and entries is None:
            raise EngineError("the server answered without log-probabilities: is it vLLM 0.32?")
        if len(entries or ()) != len(token_ids):
            raise EngineError(
                f"the server answered {len(entries or ())} log-probabilities for {len(token_ids)} tokens"
            )
        for token_id, entry in zip(token_ids, entries or (), strict=True):
            self._add_token(token_id, entry)

    def _add_token(self, token_id: Any, entry: Any) -> None:
        if type(token_id) is not int or not 0 <= token_id < self.vocabulary_size:
            raise EngineError(
                f"the server answered token {token_id!r}; the model has tokens 0 to {self.vocabulary_size - 1}"
            )
        if entry.get("token_id") != token_id:
            raise EngineError(
                f"the server answered a log-probability of {entry.get('token_id')!r} for token {token_id}"
            )
        logprob = entry.get("logprob")
        if type(logprob) not in {float, int} or not _no_logprob < logprob <= _most_logprob:
            raise EngineError(f"the server has no log-probability of token {token_id} ({logprob!r})")
        if len(self.token_ids) == self.most_tokens:
            raise EngineError(
                f"the server answered more than {self.most_tokens} tokens, which were asked for"
            )
        self.token_ids.append(token_id)
        self.logprobs.append(float(logprob))

    def _end(self, choice: dict[str, Any]) -> None:
        if choice["finish_reason"] not in _finish_reasons:
            raise EngineError(f"the server ended the response with {choice['finish_reason']!r}")
        spans = choice.get("weight_versions")
        if spans is None and self.token_ids:
            raise EngineError("the server does not say which weights made the tokens: use vLLM 0.32 or newer")
        self.spans = tuple(MarkedSpan(each["version"], each["start"], each["end"]) for each in spans or ())
        edges = [0, *(edge for span in self.spans for edge in (span.start, span.end)), len(self.token_ids)]
        is_whole = all(type(edge) is int for edge in edges)
        if not is_whole or edges != sorted(edges) or edges[::2] != edges[1::2]:
            raise EngineError(
                f"the server names weights of tokens {edges[1:-1]} for {len(self.token_ids)} tokens"
            )
        self.finish_reason = _finish_reasons[choice["finish_reason"]]


class Marks:
    """What one engine calls the weights in its server, so that no token is credited to weights it does not have.

    The server labels each token with the mark that is set when the token is computed. A mark holds a word that is drawn
    anew for each engine, and the number of the load: a server that was started again, or whose weights somebody else
    replaced, labels its tokens otherwise. While weights are being overwritten the mark is `unfit`, which none may have.

        rollog-9f2c.../1/0   rollog-9f2c.../unfit   rollog-9f2c.../2/7      first load: version 0, second: version 7
    """

    def __init__(self, word: str) -> None:
        self._prefix = f"rollog-{word}/"
        self._versions: list[int] = []
        self._loads: dict[str, int] = {}
        self.unfit = f"{self._prefix}unfit"
        self.current = self.unfit

    @property
    def num_loads(self) -> int:
        """How many loads have begun."""
        return len(self._versions)

    def load(self, version: int) -> str:
        """The mark of a load that begins now."""
        self._versions.append(version)
        self.current = f"{self._prefix}{self.num_loads}/{version}"
        self._loads[self.current] = self.num_loads
        return self.current

    def generation(self, answer: Answer, *, last_load: int | None) -> Generation:
        """The answer with versions in place of marks. With `last_load` it ends before the first token of a later load.

        Raises EngineDied for a token under any other mark.
        """
        spans, end = list[VersionSpan](), len(answer.token_ids)
        for span in answer.spans:
            load = self._load_of(span)
            if last_load is not None and load > last_load:
                end = span.start
                break
            if span.end > span.start:
                spans.append(VersionSpan(version=self._versions[load - 1], start=span.start, end=span.end))
        assert answer.finish_reason is not None
        is_whole = end == len(answer.token_ids)
        return Generation(
            token_ids=int32_array(answer.token_ids[:end]),
            behaviour_logprobs=float32_array(answer.logprobs[:end]),
            spans=_joined(spans),
            finish_reason=answer.finish_reason if is_whole else FinishReason.ABORT,
        )

    def _load_of(self, span: MarkedSpan) -> int:
        load = self._loads.get(str(span.mark))
        if load is None:
            raise EngineDied(
                f"the server made tokens with weights called {span.mark!r}, which this worker did not load: it was "
                "started again, or another worker uses it; one worker to a server"
            )
        return load


def _joined(spans: Sequence[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Spans of one version that follow each other are one: it was loaded twice."""
    joined: list[VersionSpan] = []
    for span in spans:
        if joined and joined[-1].version == span.version:
            span = VersionSpan(version=span.version, start=joined.pop().start, end=span.end)  # noqa: PLW2901
        joined.append(span)
    return tuple(joined)
