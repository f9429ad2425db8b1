"""Whether model and data fit each other: the first prompts are rendered and measured against the context."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from producers.dispatcher.dataset import load_prompts
from producers.engines.choice import kv_cache_of
from producers.engines.model_fit import check_model, fetch_config
from producers.rollout.prompts import PromptRenderer, load_tokenizer
from rollog.kernel.addresses import public_address
from rollog.kernel.errors import DataError
from rollog.run.finding import Finding
from rollog.run.preflight.environments import first_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.settings.settings import Settings
    from schemas import Prompt

_most_rows = 10_000
_most_rendered = 200


def model(settings: Settings) -> list[Finding]:
    """What the model's files say. Raises DataError, ConfigError."""
    if settings.model.path is None:
        return [Finding(what="model", found="the demo's, made here")]
    if settings.rollout.engine == "simulated":
        return [Finding(what="model", found=f"{settings.model.path}, for training alone")]
    found = [Finding(what="model", found=check_model(settings.model, settings.rollout))]
    return found + (_kv_cache(settings) if settings.rollout.engine == "vllm" else [])


def _kv_cache(settings: Settings) -> list[Finding]:
    cache = kv_cache_of(settings.model, settings.rollout)
    if cache is None:
        return []
    remedy = (
        "the others wait for room: raise rollout.kv_cache_bytes, or lower rollout.capacity or model.max_context_tokens"
        if cache.is_short
        else None
    )
    return [Finding(what="generation", found=str(cache), remedy=remedy, is_needed=False)]


def prompts(settings: Settings) -> list[Finding]:
    """The first rows of both datasets, and their prompts through tokenizer and chat template. Raises DataError."""
    if settings.environment.name is not None:
        return first_text(settings, _tokenizer(settings))
    if settings.data.train is None:
        return [Finding(what="data", found="the demo's, made here")]
    renderer = _renderer(settings)
    found = _dataset(settings, renderer, "data.train", settings.data.train, settings.data.train_split)
    if settings.data.held_out is not None:
        found += _dataset(
            settings, renderer, "data.held_out", settings.data.held_out, settings.data.held_out_split
        )
    return found


def first_row(settings: Settings) -> list[Finding]:
    """Nothing, where the first training row holds a prompt. Raises DataError."""
    if settings.data.train is not None:
        first_rows(settings, 1)
    return []


def first_rows(settings: Settings, most_rows: int) -> list[Prompt]:
    """The prompts of the first training rows. Raises DataError."""
    assert settings.data.train is not None
    return _rows(settings, settings.data.train, settings.data.train_split, most_rows)


def _rows(settings: Settings, source: str, split: str, most_rows: int) -> list[Prompt]:
    return load_prompts(
        source,
        split=split,
        prompt_field=settings.data.prompt_field,
        id_field=settings.data.id_field,
        system_prompt=settings.data.system_prompt,
        most_rows=most_rows,
    )


def _tokenizer(settings: Settings) -> Any:
    """None for the demo's model, which is made later."""
    name = settings.model.tokenizer or settings.model.path
    if name is None:
        return None
    fetch_config(name)
    return load_tokenizer(name)


def _renderer(settings: Settings) -> PromptRenderer | None:
    tokenizer = _tokenizer(settings)
    if tokenizer is None:
        return None
    return PromptRenderer(
        tokenizer,
        max_context_tokens=settings.model.max_context_tokens,
        chat_template_kwargs=settings.model.chat_template_kwargs,
    )


def _dataset(
    settings: Settings, renderer: PromptRenderer | None, key: str, source: str, split: str
) -> list[Finding]:
    rows = _rows(settings, source, split, _most_rows)
    more = "at least " if len(rows) == _most_rows else ""
    found = f"{public_address(source)}: {more}{len(rows)} prompts"
    if renderer is None:
        return [Finding(what=key, found=found)]
    errors = list(_refusals(renderer, rows[:_most_rendered], settings.sampling.max_tokens))
    num_looked_at = min(len(rows), _most_rendered)
    if len(errors) == num_looked_at:
        raise DataError(f"{key} = {public_address(source)!r}: none of its prompts can be used: {errors[0]}")
    remedies = []
    if errors:
        remedies.append(
            f"{len(errors)} of the first {num_looked_at} prompts of {public_address(source)} cannot be used, so their "
            f"groups will be closed without being trained: {errors[0]}"
        )
    unknown = _with_unknown_tokens(renderer, rows[:_most_rendered])
    if unknown:
        remedies.append(
            f"{len(unknown)} of the first {num_looked_at} prompts hold unknown tokens, first in prompt {unknown[0]}: "
            "the model does not see the words that its tokenizer lacks; use words that it has, or the tokenizer that "
            "belongs to the model (model.tokenizer)"
        )
    if not remedies:
        return [Finding(what=key, found=found)]
    return [Finding(what=key, found=found, remedy=remedy, is_needed=False) for remedy in remedies]


def _with_unknown_tokens(renderer: PromptRenderer, rows: Sequence[Prompt]) -> list[str]:
    """Ids of the prompts of which the tokenizer lacks a part; those that cannot be rendered are told elsewhere."""
    if renderer.unknown_token_id is None:
        return []
    found = []
    for row in rows:
        with suppress(DataError):
            if renderer.unknown_token_id in renderer.prompt_token_ids(row, max_tokens=0):
                found.append(row.prompt_id)
    return found


def _refusals(renderer: PromptRenderer, rows: Sequence[Prompt], max_tokens: int) -> list[str]:
    refused = []
    for row in rows:
        try:
            renderer.prompt_token_ids(row, max_tokens)
        except DataError as error:
            refused.append(str(error))
    return refused
