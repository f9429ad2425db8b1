"""What the preflight sees of an environment: its seats, and the longest of the texts that are shown first."""

from __future__ import annotations

from typing import Any

import pytest

from producers.rollout.prompts import ByteTokenizer
from rollog.kernel.errors import DataError
from rollog.run.preflight.environments import first_text
from rollog.settings.settings import Settings

pytestmark = pytest.mark.timeout(120)


def game(name: str, seats: int, max_context_tokens: int = 1024, **parameters: Any) -> Settings:
    return Settings.model_validate(
        {
            "environment": {"name": name, "seats": seats, "parameters": parameters, "format": "text"},
            "groups": {"group_size": 6},
            "sampling": {"max_tokens": 8},
            "model": {"max_context_tokens": max_context_tokens},
        }
    )


def test_another_number_of_seats_than_the_environments_is_refused() -> None:
    with pytest.raises(DataError, match=r"'nim' has 2 seat\(s\), and environment.seats = 3; make them equal"):
        first_text(game("nim", 3), None)
    assert first_text(game("nim", 2), None)[0].found.startswith("nim begins with 'There are heaps")


def test_where_several_seats_act_first_the_text_of_each_has_to_fit() -> None:
    together = game("support.episodes_for_tests:Pair", 2, is_together=True)
    assert first_text(together, ByteTokenizer())[0].found.endswith("'game 0:', 7 tokens")
    with pytest.raises(DataError, match="begins with 7 tokens"):
        first_text(game("support.episodes_for_tests:Pair", 2, 14, is_together=True), ByteTokenizer())
