"""Where a response ends because of its text: the token that completes a stop text.

Engines work on token ids and know no tokenizer, so that all of them stop at the same token with any tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schemas import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import Generation

_margin_tokens = 4
"""A text that begins in the middle of a character, or loses its first space, is wrong only there."""


@dataclass(frozen=True, slots=True)
class StopTexts:
    """The stop texts of one response, of which `earlier` are the tokens made by requests before.

    `text_of` decodes token ids, special ones included. Asked after each token, a text that is found was completed by
    the newest one.
    """

    texts: tuple[str, ...]
    text_of: Callable[[Sequence[int]], str]
    earlier: tuple[int, ...] = ()

    def after(self, earlier: Sequence[int]) -> StopTexts:
        """The same for a request that goes on behind these response tokens."""
        return replace(self, earlier=tuple(earlier))

    def is_complete(self, token_ids: Sequence[int]) -> bool:
        """Whether the last of a request's tokens completes a text."""
        # A token is at least one byte, so the newest of them hold a text of so many bytes.
        num_tokens = max(len(text.encode()) for text in self.texts) + _margin_tokens
        newest = [*self.earlier, *token_ids[-num_tokens:]][-num_tokens:]
        found = self.text_of(newest)
        return any(text in found for text in self.texts)

    def num_tokens(self, token_ids: Sequence[int], num_seen: int = 0) -> int | None:
        """With how many of a request's tokens it ends, when none of the first `num_seen` ends it; None: it does not."""
        counts = range(num_seen + 1, len(token_ids) + 1)
        return next((count for count in counts if self.is_complete(token_ids[:count])), None)


def cut_off(generation: Generation, num_tokens: int) -> Generation:
    """The first `num_tokens` tokens, ended by a stop text."""
    return replace(
        generation,
        token_ids=generation.token_ids[:num_tokens],
        behaviour_logprobs=generation.behaviour_logprobs[:num_tokens],
        spans=tuple(
            replace(span, end=min(span.end, num_tokens))
            for span in generation.spans
            if span.start < num_tokens
        ),
        finish_reason=FinishReason.STOP,
    )
