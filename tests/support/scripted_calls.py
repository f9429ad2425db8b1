"""A policy that says what a test tells it, when the test lets it, and remembers every input."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.sessions.text_tokens import TextTokens
from schemas import FinishReason
from support.chat_models import a_chat_tokenizer
from support.remembering_engine import RememberingEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.engines.ports import Generation


@dataclass
class ScriptedCalls:
    """Says `texts` in turn, then the last one for ever. A `closed` gate holds calls back until it is opened."""

    texts: list[str | Exception]
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    engine: RememberingEngine = field(default_factory=RememberingEngine)
    asked: list[tuple[str, int, tuple[str, ...]]] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)

    async def generate(
        self, session: str, input_ids: Sequence[int], max_tokens: int, stop: Sequence[str]
    ) -> Generation:
        said = self.texts[min(len(self.inputs), len(self.texts) - 1)]
        self.asked.append((session, max_tokens, tuple(stop)))
        self.inputs.append(list(input_ids))
        await self.gate.wait()
        if isinstance(said, Exception):
            raise said
        ids = TextTokens(a_chat_tokenizer()).added_ids(said)
        is_cut = len(ids) > max_tokens
        reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        return self.engine.generate(input_ids, ids[:max_tokens], finish_reason=reason)
