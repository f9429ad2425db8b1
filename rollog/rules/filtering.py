"""Which complete groups are not worth a place in a batch: no signal, too hard or too easy, too short or too long.

Trainer and dispatcher ask the same function about the same members, so a group that the trainer will filter is
replaced before its verdict is in the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rollog.rules import reasons

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollog.settings.groups import GroupConfig

smallest_difference = 1e-9


class Member(Protocol):
    """What the filters look at in a finished sample: its reward, its length, and whether it was cut off."""

    @property
    def reward(self) -> float | None:
        """Its score."""
        ...

    @property
    def num_tokens(self) -> int:
        """Its length: the tokens that the policy sampled in all its turns."""
        ...

    @property
    def is_truncated(self) -> bool:
        """Whether the response was cut off before its end."""
        ...


def filter_reason(members: Sequence[Member], groups: GroupConfig) -> str | None:
    """Why a complete group of these finished members is filtered, or None if it is trained; the first reason counts."""
    rewards = [member.reward for member in members if member.reward is not None]
    return _reason_of_rewards(rewards, groups) or _reason_of_lengths(members, groups)


def pass_rate(rewards: Iterable[float], pass_reward: float) -> float:
    """The share of rewards that are at least `pass_reward`: how easy the prompt is for the policy."""
    passed = [reward >= pass_reward for reward in rewards]
    return sum(passed) / len(passed)


def _reason_of_rewards(rewards: Sequence[float], groups: GroupConfig) -> str | None:
    """A group whose rewards are all equal has zero advantage over its mean everywhere, hence no gradient from it."""
    if groups.filter_zero_signal and max(rewards) - min(rewards) < smallest_difference:
        return reasons.zero_signal
    if groups.reward_mean_bounds is not None:
        low, high = groups.reward_mean_bounds
        if not low <= sum(rewards) / len(rewards) <= high:
            return reasons.mean_out_of_bounds
    passing = pass_rate(rewards, groups.pass_reward)
    return _outside(passing, groups.pass_rate_bounds, reasons.too_hard, reasons.too_easy)


def _reason_of_lengths(members: Sequence[Member], groups: GroupConfig) -> str | None:
    mean_tokens = sum(member.num_tokens for member in members) / len(members)
    bounds = groups.response_tokens_mean_bounds
    reason = _outside(mean_tokens, bounds, reasons.too_short, reasons.too_long)
    if reason is None and groups.max_truncated_share is not None:
        share = sum(member.is_truncated for member in members) / len(members)
        return reasons.truncated if share > groups.max_truncated_share else None
    return reason


def _outside(value: float, bounds: tuple[float, float] | None, below: str, above: str) -> str | None:
    """Which bound the value crosses; the bounds themselves are inside."""
    if bounds is None or bounds[0] <= value <= bounds[1]:
        return None
    return below if value < bounds[0] else above
