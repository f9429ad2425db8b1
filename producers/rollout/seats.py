"""The seats of an episode: what each has been shown and has said, what that earned it, what response it comes to.

A seat reads what the environment showed it since its last turn when it is to act: all of that is one message to the
policy. Rewards fall to its last turn, also those of steps in which others acted; what came before its first turn falls
to that one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from producers.engines.ports import Generation, VersionSpan
from producers.rewards.functions import RewardResult
from rollog.kernel.errors import DataError, EnvironmentFailed
from schemas import FinishReason, float32_array, int32_array, uint8_array

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from producers.environments.ports import Observation, StepResult
    from producers.rollout.outcomes import Replica
    from producers.rollout.resumption import ResumableResponse
    from producers.rollout.scoring import Response
    from producers.rollout.speech import Speech
    from producers.sessions.budgets import Call
    from producers.sessions.journal import Journal
    from producers.sessions.recorder import Session
    from schemas import Int32Array, Sample, UInt8Array


@dataclass(frozen=True, slots=True)
class Played:
    """Ids from a seat's first sampled token to its last, with mask 1 on what was sampled, and `context` before them."""

    generation: Generation
    loss_mask: UInt8Array
    context: Int32Array


@dataclass(slots=True, eq=False)
class Seat:
    """A seat that is being played.

    | state    | reached by             | then                                                     |
    | ---      | ---                    | ---                                                      |
    | watching | the beginning, `said`  | `shown` collects what it sees                            |
    | to act   | `ask`                  | its input stands; the engine generates, then `said`      |
    | left     | the environment        | nothing; it may still be rewarded                        |

    One that is not `is_ordered` is played for the others' sake: there is no sample of it.
    """

    replica: Replica
    number: int
    is_ordered: bool
    session: Session
    speech: Speech
    input_ids: list[int] = field(default_factory=list)
    has_left: bool = False
    journal: Journal | None = None
    """Where its turns are kept, and may be served from again."""
    under_way: ResumableResponse | None = None
    """The call in the engine, or one that came to nothing."""
    _unread: list[str] = field(default_factory=list)
    _last_turn: tuple[Sequence[int], str] | None = None
    _rewards: list[float] = field(default_factory=list)
    _early_reward: float = 0.0
    _num_recorded_tokens: int = 0

    @property
    def num_sampled(self) -> int:
        """Tokens that the engine made for it."""
        return self._num_recorded_tokens + (0 if self.under_way is None else self.under_way.num_tokens)

    def shown(self, text: str) -> None:
        """The environment shows it something; it reads that at its next turn."""
        self._unread.append(text)

    def rewarded(self, reward: float) -> None:
        """It earns something."""
        if self._rewards:
            self._rewards[-1] += reward
        else:
            self._early_reward += reward

    def ask(self) -> Call:
        """Read what it was shown, and reserve its turn. Raises EnvironmentFailed, BudgetSpent, Overlong."""
        text = self._read()
        self._unread.clear()
        if self._last_turn is None:
            self.input_ids = self.speech.opening(text)
        else:
            self.input_ids = self.speech.reply(self.input_ids, *self._last_turn, text)
        return self.session.ask(len(self.input_ids))

    def require_a_turn(self, max_context_tokens: int) -> None:
        """Raises DataError where there was no room for its first turn."""
        if not self.session.num_turns:
            raise DataError(
                f"the environment's first text has {len(self.input_ids)} tokens and the context takes "
                f"{max_context_tokens}: raise model.max_context_tokens"
            )

    def said(self, turn: Generation, text: str, call: Call) -> None:
        """Record a turn. Raises SessionFailed."""
        self.session.record(self.input_ids, turn, call=call)
        self.under_way = None
        self._num_recorded_tokens += len(turn.token_ids)
        self._last_turn = (turn.token_ids.tolist(), text)
        self._rewards.append(self._early_reward)
        self._early_reward = 0.0

    def reward(self, *, with_turn_rewards: bool) -> RewardResult:
        """What the episode was worth to it, and how many turns it took."""
        return RewardResult(
            reward=sum(self._rewards) + self._early_reward,
            components={"turns": float(len(self._rewards))},
            turn_rewards=tuple(self._rewards) if with_turn_rewards else (),
        )

    def played(self, *, is_truncated: bool) -> Played:
        """Its turns and what stood between them. Raises SessionFailed."""
        rows = self.session.recording(lambda _: "").rows
        generation = Generation(
            token_ids=rows.token_ids,
            behaviour_logprobs=rows.behaviour_logprobs,
            spans=tuple(
                VersionSpan(version=each.version, start=each.start, end=each.end) for each in rows.segments
            ),
            finish_reason=self._finish_reason(is_truncated=is_truncated),
        )
        return Played(generation, rows.loss_mask, rows.context)

    def watched(
        self, first_ids: Sequence[int], version: int, *, max_context_tokens: int, is_truncated: bool
    ) -> Played:
        """What stands for a seat that never said anything: what it was shown, whose last id is an untrained response.

        A record needs a response, and a group needs the reward: the others' rewards are compared with it. `first_ids`
        are the first input of the episode, for a seat that was shown nothing; `version` is the oldest that played.
        """
        try:
            ids = self.input_ids or self.speech.opening(self._read())
        except EnvironmentFailed:
            ids = list(first_ids)
        *context, last = ids[:max_context_tokens]
        generation = Generation(
            token_ids=int32_array([last]),
            behaviour_logprobs=float32_array([0.0]),
            spans=(VersionSpan(version=version, start=0, end=1),),
            finish_reason=self._finish_reason(is_truncated=is_truncated),
        )
        return Played(generation, uint8_array([0]), int32_array(context))

    def _finish_reason(self, *, is_truncated: bool) -> FinishReason:
        return FinishReason.LENGTH if is_truncated and not self.has_left else FinishReason.STOP

    def _read(self) -> str:
        return "\n".join(text for text in self._unread if text)


@dataclass(slots=True, eq=False)
class SeatedEpisode:
    """An episode that is being played. All its seats are of one task, so one ending ends them all."""

    seats: Sequence[Seat]
    began_at: float
    missing: set[int]
    """Replicas whose outcome nobody has asked for yet."""
    is_truncated: bool = False
    first_ids: Sequence[int] = ()
    """The first input of whoever acted first."""
    answer: asyncio.Future[Any] | None = None
    """What is waited for of the environment."""
    outcomes: asyncio.Task[dict[int, Response | Sample]] | None = None
    """By replica, once it is over."""

    @property
    def first(self) -> Replica:
        """The first replica that has a sample."""
        return self.ordered[0].replica

    @property
    def ordered(self) -> list[Seat]:
        """The seats that have a sample."""
        return [seat for seat in self.seats if seat.is_ordered]

    def show(self, observation: Observation) -> None:
        """Each seat sees what is for it."""
        for number, text in observation.texts.items():
            self.seats[number].shown(text)

    def take(self, result: StepResult) -> None:
        """What a step brought to the seats."""
        self.show(result.observation)
        for number, reward in result.rewards.items():
            self.seats[number].rewarded(reward)
        self.is_truncated = result.truncated
        # At the end all are done, and a seat that was there until then is cut off if the episode is.
        if not result.is_over:
            for number in result.done_seats:
                self.seats[number].has_left = True

    def num_wasted(self) -> int:
        """Tokens that were made for seats without a sample."""
        return sum(seat.num_sampled for seat in self.seats if not seat.is_ordered)
