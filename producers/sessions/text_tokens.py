"""Rendered conversations as token ids, in which text that an agent wrote never becomes a special token.

Before rendering, `hide` replaces each special token's text inside a message by a mark; the template's own special
tokens stay as they are. `ids` splits the rendered text at those, puts the hidden text back, and encodes what lies
between without special tokens. A conversation without hidden text is encoded as the tokenizer does it.

Marks are Unicode noncharacters, which no text is meant to contain; those that one does contain are hidden too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

_begin, _end = "\ufdd0", "\ufdd1"
answer_mark, head_mark, probe_mark, open_mark = "\ufdd2", "\ufdd3", "\ufdd4", "\ufdd5"
"""Stand in for text of messages, so that its place is found again in what a template makes of them."""

_least_longest = 32
"""Characters of a token, at least: an unknown word is one token, and white space may be merged before it is split."""

_marks = (_begin, _end, answer_mark, head_mark, probe_mark, open_mark)
_hidden = re.compile(f"{_begin}([0-9]*){_end}")


class TextTokens:
    """One tokenizer (transformers, or alike) with hidden special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._ids = {str(token.content): int(at) for at, token in added.items() if token.special}
        self.special_ids = frozenset(self._ids.values())
        self.longest = max(_least_longest, max(map(len, _words(tokenizer)), default=0))
        """Characters of the longest token: a text has at least its length divided by this of tokens."""
        self._forged = self.special_ids - {getattr(tokenizer, "unk_token_id", None)}
        # The longest first, so that a token whose text begins with another's is found whole.
        self._texts = [*sorted(self._ids, key=len, reverse=True), *_marks]
        self._any_text = re.compile("|".join(map(re.escape, self._texts)))
        self._any_special = re.compile(f"({'|'.join(map(re.escape, self._texts[: -len(_marks)])) or '(?!)'})")
        self._beginnings = {text[:length] for text in self._ids for length in range(1, len(text))}
        self._longest = max(map(len, self._beginnings), default=0)

    def hide(self, value: Any) -> Any:
        """A JSON value in whose strings special tokens are marks."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        return value

    def ids(self, text: str) -> list[int]:
        """Token ids of a rendered text, its marks read as plain text."""
        if not _hidden.search(text):
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        ids: list[int] = []
        for piece in self._any_special.split(text):
            special = self._ids.get(piece)
            ids += self.plain_ids(_hidden.sub(self._shown, piece)) if special is None else [special]
        return ids

    def raw_ids(self, text: str) -> list[int]:
        """Token ids of a text completion's prompt: special tokens and all, as the tokenizer does it."""
        return list(self._tokenizer.encode(text))

    def added_ids(self, text: str) -> list[int]:
        """Token ids of a text that follows other text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def plain_ids(self, text: str) -> list[int]:
        """Token ids of a text that is nothing but text: what looks like a special token in it becomes none."""
        if not text:
            return []
        encoded = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        # A tokenizer of whole words has its special tokens among its words, and finds them whatever it is told.
        return [token_id for token_id in encoded if token_id not in self._forged]

    def text(self, token_ids: Sequence[int], *, with_special: bool = False) -> str:
        """The text of token ids, by default without special tokens."""
        # Clean-up would alter what was said; the text is to begin a later prompt again.
        decoded: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=not with_special, clean_up_tokenization_spaces=False
        )
        return decoded

    def text_with(self, token_ids: Sequence[int], kept: AbstractSet[str]) -> str:
        """The text of token ids with these special tokens, and without the others."""
        dropped = {at for text, at in self._ids.items() if text not in kept}
        return self.text([at for at in token_ids if at not in dropped], with_special=True)

    def _hide_text(self, text: str) -> str:
        hidden = self._any_text.sub(lambda found: f"{_begin}{self._texts.index(found[0])}{_end}", text)
        # Two texts side by side must not make a token together: a mark of nothing stands between them.
        is_beginning = any(
            text[-length:] in self._beginnings for length in range(1, min(self._longest, len(text)) + 1)
        )
        return f"{hidden}{_begin}{_end}" if is_beginning else hidden

    def _shown(self, found: re.Match[str]) -> str:
        number = int(found[1]) if found[1] else len(self._texts)
        return self._texts[number] if number < len(self._texts) else ""


def _words(tokenizer: Any) -> Iterable[str]:
    return tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else ()
