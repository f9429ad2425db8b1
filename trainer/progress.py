"""Whether a run still learns anything: a pure look at the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.errors import DataError
from schemas import Disposition

if TYPE_CHECKING:
    from rollog.rules.ledger_state import LedgerState
    from rollog.settings.groups import GroupConfig

causes = {
    Disposition.FILTERED: "what the filters in [groups] do not let pass",
    Disposition.INCOMPLETE: "attempts that failed, were lost, dropped or unrewarded until the group was given up",
}


_fewest_groups = 8

judged_behind_a_response = frozenset(
    {
        Disposition.DUPLICATE,
        Disposition.REDUNDANT,
        Disposition.STALE,
        Disposition.INCOMPLETE,
        Disposition.FILTERED,
        Disposition.TRAINED,
    }
)
"""What only a sample with a reward is judged as."""


def check_progress(ledger: LedgerState, groups: GroupConfig, newest_failure: str | None = None) -> None:
    """Raise DataError when too many groups in a row were closed without being trained.

    Otherwise a run whose rewards never vary, or can never be computed, would issue groups for ever. Where no attempt
    of the whole run has come to a reward, one batch of groups is too many; 8 groups, where a batch has fewer, because
    one prompt may be the only bad one. The count is a function of the ledger alone: a trainer that is started again
    comes to the same conclusion. `newest_failure`, what was read last of an attempt
    that failed, is said with it.
    """
    num_groups = ledger.untrained_in_a_row.total()
    if num_groups >= max(groups.groups_per_batch, _fewest_groups) and not _has_finished_any(ledger):
        said = "" if newest_failure is None else f", the newest with {newest_failure!r}"
        raise DataError(
            f"the first {num_groups} groups are closed and not one rollout has come to a reward: "
            f"{ledger.num_by_disposition[Disposition.FAILED]} attempts failed{said}{_unrewarded(ledger)}; correct what "
            "they failed with, and begin a new run"
        )
    if num_groups < groups.most_untrained_in_a_row:
        return
    counts = "; ".join(
        f"{count} {outcome}: {causes.get(outcome, 'see the ledger')}"
        for outcome, count in ledger.untrained_in_a_row.most_common()
    )
    reasons = ", ".join(f"{count} {reason}" for reason, count in ledger.filtered_in_a_row.most_common())
    if reasons:
        counts += f"; filtered as {reasons}"
    failure = "" if newest_failure is None else f"the newest failed attempt says {newest_failure!r}; "
    raise DataError(
        f"at version {ledger.version} the last {num_groups} groups were closed and none was trained ({counts}); "
        f"{failure}check that the reward function works and tells responses to the same prompt apart, that the "
        "prompts are neither too hard nor too easy for the model and that the filters suit both, or raise "
        "groups.max_untrained_in_a_row "
        f"(now {groups.most_untrained_in_a_row})"
    )


def _has_finished_any(ledger: LedgerState) -> bool:
    return any(ledger.num_by_disposition[each] for each in judged_behind_a_response)


def _unrewarded(ledger: LedgerState) -> str:
    """Those that nobody gave a reward, where there are any."""
    num = ledger.num_by_disposition[Disposition.UNREWARDED]
    return f", and for {num} no reward came within reward.deadline_seconds" if num else ""
