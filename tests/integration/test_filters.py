"""Whole runs in which groups are filtered by difficulty and by length, over the broker in memory."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import small_settings, whole_run

from rollog.kernel.broker.memory import MemoryBroker
from rollog.rules.reasons import too_easy, too_hard, too_short, truncated
from schemas import Disposition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from rollog.rules.headers import SampleHeader
    from schemas import LedgerRecord

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

num_steps, groups_per_batch, group_size = 3, 2, 4


def members_by_reason(
    ledger: list[LedgerRecord], samples: list[SampleHeader]
) -> dict[str, list[list[SampleHeader]]]:
    """The members of every group that was judged whole: under why it was filtered, or under "" if it was trained."""
    headers = {header.place: header for header in samples}
    reasons: dict[int, str] = {}
    members: defaultdict[int, list[SampleHeader]] = defaultdict(list)
    for record in ledger:
        for verdict in record.verdicts:
            if verdict.disposition in (Disposition.FILTERED, Disposition.TRAINED):
                members[verdict.group_id].append(headers[verdict.partition, verdict.offset])
                reasons[verdict.group_id] = verdict.reason
    found: defaultdict[str, list[list[SampleHeader]]] = defaultdict(list)
    for group, reason in reasons.items():
        assert len(members[group]) == group_size
        found[reason].append(members[group])
    return found


def rewards_of(members: list[SampleHeader]) -> float:
    return sum(header.reward or 0.0 for header in members)


def tokens_of(members: list[SampleHeader]) -> int:
    return sum(header.num_tokens for header in members)


def truncated_of(members: list[SampleHeader]) -> int:
    return sum(header.is_truncated for header in members)


@pytest.mark.parametrize(
    ("filters", "refuses"),
    [
        (
            {"filter_zero_signal": False, "pass_rate_bounds": [0.6, 0.8]},
            {
                too_hard: lambda members: rewards_of(members) < 3,
                too_easy: lambda members: rewards_of(members) > 3,
            },
        ),
        (
            {
                "filter_zero_signal": False,
                "response_tokens_mean_bounds": [7, 8],
                "max_truncated_share": 0.75,
            },
            {
                too_short: lambda members: tokens_of(members) < 4 * 7,
                truncated: lambda members: truncated_of(members) > 3,
            },
        ),
    ],
)
def test_filtered_groups_are_replaced_by_fresh_prompts_and_counted_by_reason(
    tmp_path: Path, filters: dict[str, Any], refuses: dict[str, Callable[[list[SampleHeader]], bool]]
) -> None:
    settings = small_settings(tmp_path, "filters", freshness={"alpha": 0.0}, groups=filters)
    with whole_run(MemoryBroker(), tmp_path, settings) as run:
        found = members_by_reason(run.to_its_end(), run.samples())
    trained = found.pop("")
    assert len(trained) == num_steps * groups_per_batch
    assert not any(is_refused(members) for members in trained for is_refused in refuses.values())
    assert found.keys() == refuses.keys()
    counted = run.trainer_metrics.registry.get_sample_value
    for reason, groups in found.items():
        assert all(refuses[reason](members) for members in groups)
        assert counted("rollog_trainer_groups_filtered_total", {"reason": reason}) == len(groups)
