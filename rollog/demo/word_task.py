"""What a policy of whole words is warm-started on: its vocabulary, and demonstrations as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.demo import countdown, guessing, sums
from rollog.demo.word_models import eos_token, special_tokens

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from rollog.demo.settings import WarmStartSettings

Example = tuple[list[int], list[bool]]
"""Token ids, and which of them are learnt: those of the policy."""

countdown_words = (
    *special_tokens,
    *countdown.operators,
    ":",
    "=",
    countdown.again,
    *countdown.marks,
    *(str(value) for value in range(countdown.largest_value + 1)),
)
guessing_words = (
    *special_tokens,
    "..",
    ":",
    *guessing.answers,
    *(str(value) for value in range(1, guessing.largest_number + 1)),
)
sums_words = (
    *special_tokens,
    *dict.fromkeys(sums.introduction.split()),
    *sums.operators,
    "=",
    sums.opening,
    sums.closing,
    *(str(value) for value in range(-sums.largest_sum, sums.largest_sum + 1)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTask:
    """A task of the demo. `examples` draws the demonstrations of one step; `True` while formats are practised."""

    words: tuple[str, ...]
    max_context_tokens: int
    examples: Callable[[random.Random, WarmStartSettings, bool], list[Example]]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text of known words, without any tokenizer object."""
        return [self.words.index(word) for word in text.split()]


def _countdown_examples(rng: random.Random, settings: WarmStartSettings, practises: bool) -> list[Example]:
    drawn = rng.choices(countdown.problems(held_out=False), k=settings.batch_size)
    found = []
    for problem in drawn:
        response = countdown.demonstration(
            problem,
            rng,
            stop_after_hit=0.0 if practises else settings.stop_after_hit,
            stop_after_miss=0.0 if practises else settings.stop_after_miss,
        )
        found.append(_example(countdown_task, [(problem.prompt, False), (f"{response} {eos_token}", True)]))
    return found


def _guessing_examples(rng: random.Random, settings: WarmStartSettings, practises: bool) -> list[Example]:
    heed_answers = 1.0 if practises else settings.heed_answers
    drawn = rng.choices(guessing.games(held_out=False), k=settings.batch_size)
    return [_example(guessing_task, list(_turns(game, rng, heed_answers))) for game in drawn]


def _sums_examples(rng: random.Random, settings: WarmStartSettings, practises: bool) -> list[Example]:
    work_out = 1.0 if practises else settings.work_out
    found = []
    for _ in range(settings.batch_size):
        asked = sums.drawn(rng)
        answer = asked.answer(worked_out=rng.random() < work_out)
        found.append(_example(sums_task, [(asked.question, False), (f"{answer} {eos_token}", True)]))
    return found


def _turns(game: guessing.Game, rng: random.Random, heed_answers: float) -> Iterator[tuple[str, bool]]:
    yield guessing.Played.new(game).range, False
    for guess, answer in guessing.demonstration(game, rng, heed_answers=heed_answers):
        yield f"{guess} {eos_token}", True
        yield answer, False


def _example(task: WordTask, parts: Sequence[tuple[str, bool]]) -> Example:
    encoded = [(task.encode(text), is_learnt) for text, is_learnt in parts]
    return (
        [token for tokens, _ in encoded for token in tokens],
        [is_learnt for tokens, is_learnt in encoded for _ in tokens],
    )


countdown_task = WordTask(words=countdown_words, max_context_tokens=64, examples=_countdown_examples)
guessing_task = WordTask(words=guessing_words, max_context_tokens=64, examples=_guessing_examples)
sums_task = WordTask(words=sums_words, max_context_tokens=64, examples=_sums_examples)
tasks = {"countdown": countdown_task, "guessing": guessing_task, "sums": sums_task}
"""By the name of the module that tells what is asked."""
