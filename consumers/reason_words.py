"""What the short reasons of verdicts mean, in words. Pure."""

from __future__ import annotations

from rollog.rules import reasons
from schemas import CancelReason, Disposition

_of_reasons = {
    reasons.unknown_weights: "it names weights that the ledger does not know",
    reasons.over_lag_bound: "it is more versions old than alpha allows",
    reasons.over_lag_quota: "the batch had its share of samples of the largest lag",
    reasons.aged_surplus: "it became too old while its complete group waited for a batch",
    reasons.redundant_group: "it became too old in a group that was ordered in excess",
    reasons.zero_signal: "all rewards of the group are equal, so nothing is learned from it",
    reasons.mean_out_of_bounds: "the mean reward of the group is outside groups.reward_mean_bounds",
    reasons.too_hard: "fewer responses of the group pass than groups.pass_rate_bounds asks for",
    reasons.too_easy: "more responses of the group pass than groups.pass_rate_bounds allows",
    reasons.too_short: "the group's responses are shorter than groups.response_tokens_mean_bounds allows",
    reasons.too_long: "the group's responses are longer than groups.response_tokens_mean_bounds allows",
    reasons.truncated: "more responses of the group were cut off than groups.max_truncated_share allows",
    reasons.group_closed: "its group had ended when it came",
    reasons.spare: "its group had enough members without it",
    reasons.closed_short: "its group ended without enough members",
    reasons.timed_out: "its group took longer than groups.timeout_seconds",
    reasons.last_batch: "too few groups were left for another batch",
    reasons.run_closed: "the run ended while its group was open",
    reasons.cancelled: "its task was taken back, because its result would have been too old",
    reasons.untrainable: "training fails on its group",
    reasons.no_reward: "nobody wrote a reward for it within reward.deadline_seconds",
    reasons.other_writer: "it was written by one of groups.other_writers",
    CancelReason.SATISFIED.value: "its group or the run had ended, so its task was taken back",
    CancelReason.SURPLUS.value: "its group had enough members, so its task was taken back",
    CancelReason.STALE.value: "its result would have been too old, so its task was taken back",
    CancelReason.EVALUATION_GIVEN_UP.value: "its evaluation was given up",
}
_of_dispositions = {
    Disposition.FAILED: "its rollout failed; the record says how",
    Disposition.LOST: "its worker was gone before it ended",
    Disposition.CANCELLED: "its rollout did not end in time",
    Disposition.DUPLICATE: "another sample of the same replica was trained",
}


def reason_in_words(disposition: Disposition, reason: str) -> str | None:
    """Why a sample got that verdict; None where nothing is to be said, and for a reason that is in words already."""
    return _of_reasons.get(reason) or (None if reason else _of_dispositions.get(disposition))
