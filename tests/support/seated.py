"""Games of several seats for a worker, engines that can play them, and the game played again from its records."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from producers.engines.ports import Generation, VersionSpan
from producers.engines.simulated import SimulatedEngine
from producers.environments.names import EnvironmentSpec
from producers.environments.pool import EnvironmentPool
from producers.environments.process import EnvironmentLimits
from producers.rollout.episodes import Episodes, EpisodeSettings
from producers.rollout.prompts import ByteTokenizer
from producers.rollout.speech import TextSpeech
from schemas import FinishReason, RolloutTask, SamplingParameters, float32_array, int32_array
from support.episodes_for_tests import RandomGame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.engines.ports import GenerationRequest
    from schemas import Sample
    from support.worker_thread import Stage

_heap = re.compile(r"heap (\d+): (\d+)")
random_game = "support.episodes_for_tests:RandomGame"
pair = "support.episodes_for_tests:Pair"


def seated(
    environment: str,
    *,
    seats: int = 2,
    max_turns: int = 50,
    with_turn_rewards: bool = False,
    limits: EnvironmentLimits | None = None,
    python: str | None = None,
    **parameters: Any,
) -> Episodes:
    """A game of several seats, as a worker plays it."""
    return Episodes(
        pool=EnvironmentPool(limits or EnvironmentLimits(num_processes=1, episodes_per_process=128)),
        settings=EpisodeSettings(
            environment=EnvironmentSpec(environment=environment, parameters=parameters, python=python),
            max_turns=max_turns,
            num_seats=seats,
            with_turn_rewards=with_turn_rewards,
        ),
        speech=lambda: TextSpeech(ByteTokenizer()),
    )


def seats_task(
    stage: Stage,
    *,
    seed: int = 7,
    group: int = 0,
    replica: int = 0,
    num_replicas: int = 2,
    max_tokens: int = 12,
) -> RolloutTask:
    """The order of neighbouring seats of one episode, or of several."""
    task = stage.task(
        group,
        replica,
        num_replicas=num_replicas,
        sampling=SamplingParameters(temperature=1.0, max_tokens=max_tokens),
    )
    inputs = json.dumps({"seed": seed})
    prompt = replace(task.prompt, text="", messages_json=None, reward_inputs_json=inputs)
    return replace(task, reward="", prompt=prompt)


class Scripted(SimulatedEngine):
    """Says what `says` makes of the text before, and remembers every input."""

    def __init__(self, says: Callable[[str], str], *, max_context_tokens: int = 4096) -> None:
        super().__init__(max_context_tokens=max_context_tokens)
        self._says = says
        self.asked: dict[str, list[int]] = {}

    async def generate(self, request: GenerationRequest) -> Generation:
        self.asked[request.request_id] = list(request.prompt_token_ids)
        ids = ByteTokenizer().encode(self._says(text_of(request.prompt_token_ids)))
        return Generation(
            token_ids=int32_array(ids),
            behaviour_logprobs=float32_array([-0.5] * len(ids)),
            spans=(VersionSpan(version=0, start=0, end=len(ids)),),
            finish_reason=FinishReason.STOP,
        )


def nim_move(seen: str) -> str:
    """The best move of the position shown last: one that leaves the other an exclusive or of 0, if there is one."""
    heaps = [int(count) for _, count in _heap.findall(seen.rsplit("You are seat", 1)[0].rsplit("\n", 1)[-1])]
    balance = 0
    for count in heaps:
        balance ^= count
    for number, count in enumerate(heaps, 1):
        if balance and count ^ balance < count:
            return f"{number} {count - (count ^ balance)} "
    return f"{1 + next(at for at, count in enumerate(heaps) if count)} 1 "


def text_of(token_ids: Sequence[int]) -> str:
    return ByteTokenizer().decode([int(token_id) for token_id in token_ids])


def stretches(sample: Sample) -> tuple[list[str], list[str]]:
    """What the seat was shown before each turn, and its turns."""
    shown, turns = [text_of(sample.prompt_token_ids.tolist())], list[str]()
    masked = zip(sample.loss_mask.tolist(), sample.token_ids.tolist(), strict=True)
    for is_said, stretch in groupby(masked, key=lambda pair: bool(pair[0])):
        (turns if is_said else shown).append(text_of([token_id for _, token_id in stretch]))
    return shown, turns


@dataclass
class Replayed:
    """A random game played again with the turns of its records: what each seat should have seen and earned."""

    shown: dict[int, list[str]]
    rewards: dict[int, list[float]]
    early: dict[int, float]
    unread: dict[int, list[str]]
    left: set[int] = field(default_factory=set)
    is_over: bool = False

    def see(self, texts: Any) -> None:
        for seat, text in texts.items():
            self.unread[seat].append(text)

    def earn(self, rewards: Any) -> None:
        for seat, reward in rewards.items():
            if self.rewards[seat]:
                self.rewards[seat][-1] += reward
            else:
                self.early[seat] += reward


def replayed(turns: dict[int, list[str]], seed: int) -> Replayed:
    """Play until the game ends, or until those that are to act have no turn left in the record."""
    seats = sorted(turns)
    game = RandomGame(num_seats=len(seats))
    found = Replayed(
        {seat: [] for seat in seats},
        {seat: [] for seat in seats},
        dict.fromkeys(seats, 0.0),
        {s: [] for s in seats},
    )
    observation = game.reset(seed)
    found.see(observation.texts)
    while observation.to_act and all(len(turns[s]) > len(found.rewards[s]) for s in observation.to_act):
        action: dict[int, str] = {}
        for seat in observation.to_act:
            found.shown[seat].append("\n".join(found.unread[seat]))
            found.unread[seat].clear()
            action[seat] = turns[seat][len(found.rewards[seat])]
            found.rewards[seat].append(found.early[seat])
            found.early[seat] = 0.0
        result = game.step(action)
        observation = result.observation
        found.see(observation.texts)
        found.earn(result.rewards)
        found.is_over = result.is_over
        if not result.is_over:
            found.left |= result.done_seats
    return found
