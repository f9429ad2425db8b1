"""`length`: what a response loses for being long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from producers.engines.model_files import model_file
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from producers.rewards.functions import RewardFunction
    from rollog.settings.named_rewards import LengthReward


def length_reward(options: LengthReward) -> RewardFunction:
    """The reward function. Raises DataError where tokens are to be counted and there is no tokenizer."""
    measured = _measure(options)

    def length(prompt: object, response: str, /, **fields: Any) -> dict[str, float]:
        del prompt, fields
        counted = measured(response)
        penalty = overlong_penalty(counted, target=options.target, limit=options.limit)
        return {"reward": penalty, options.unit: counted}

    return length


def overlong_penalty(length: int, *, target: int, limit: int) -> float:
    """0 up to `target`, -1 from `limit`, linear between: equation 13 of arXiv 2503.14476.

    Its L_max is `limit`, its L_cache `limit - target`.
    """
    return -min(1.0, max(0.0, (length - target) / (limit - target)))


def _measure(options: LengthReward) -> Callable[[str], int]:
    if options.tokenizer is not None:
        return _token_counter(options.tokenizer)
    return len if options.unit == "characters" else lambda text: len(text.split())


def _token_counter(name: str) -> Callable[[str], int]:
    path = model_file(name, "tokenizer.json")
    if path is None:
        raise DataError(
            f"the reward 'length' has tokenizer = {name!r}, where there is no tokenizer.json; name a directory that "
            "has one, or a cached Hugging Face model"
        )
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise DataError("the reward 'length' counts tokens with tokenizers; install rollog[train]") from error
    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
