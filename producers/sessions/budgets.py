"""How much a session may still sample: turns, tokens and room in the context, less what its own calls hold.

A call reserves its turn and its most tokens when it is asked, and gives back what it did not use. So calls in
parallel never sample more than the budget together.
"""

from __future__ import annotations

from dataclasses import dataclass

from producers.sessions.errors import BudgetSpent, CallsInFlight, Overlong


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Most turns and sampled tokens of a session, most tokens of one turn, tokens of the context, and forks."""

    turns: int
    tokens: int
    turn_tokens: int
    context_tokens: int
    forks: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that may be made: at most so many tokens, asked at this moment of the session."""

    max_tokens: int
    asked_at: int


@dataclass(slots=True)
class Spending:
    """What of a budget is used, and what calls under way may still use."""

    budget: Budget
    turns: int = 0
    tokens: int = 0
    reserved_turns: int = 0
    reserved_tokens: int = 0
    is_spent: bool = False

    def reserve(self, num_input_tokens: int, asked: int | None) -> int:
        """Most tokens of a call: the least of what was asked, the budget and the room in the context.

        Raises BudgetSpent, CallsInFlight and Overlong.
        """
        budget = self.budget
        if self.turns >= budget.turns or self.tokens >= budget.tokens:
            self.is_spent = True
            raise BudgetSpent(
                f"{self.turns} of {budget.turns} turns and {self.tokens} of {budget.tokens} tokens are used; "
                "the session takes no further call"
            )
        room = budget.context_tokens - num_input_tokens
        if room < 1:
            raise Overlong(
                f"the input has {num_input_tokens} tokens and the context takes {budget.context_tokens} with the "
                "answer; shorten the messages"
            )
        left = budget.tokens - self.tokens - self.reserved_tokens
        if self.turns + self.reserved_turns >= budget.turns or left < 1:
            raise CallsInFlight(
                f"{self.reserved_turns} calls under way hold the {budget.turns - self.turns} turns and "
                f"{budget.tokens - self.tokens} tokens that are left; ask again when one has ended"
            )
        most = min(room, left, budget.turn_tokens, *([] if asked is None else [asked]))
        self.reserved_turns += 1
        self.reserved_tokens += most
        return most

    def release(self, max_tokens: int) -> None:
        """A call that had reserved `max_tokens` ends."""
        self.reserved_turns -= 1
        self.reserved_tokens -= max_tokens

    def use(self, num_tokens: int) -> None:
        """A turn of so many tokens is recorded."""
        self.turns += 1
        self.tokens += num_tokens
