"""What rules see of a sample of several sequences: one rollout, as old as its oldest token, as long as its turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.builders import LedgerBuilder, digest_of, groups_config
from support.forked_samples import a_session, an_episode, forked

from rollog.rules import reasons
from rollog.rules.filtering import filter_reason
from rollog.rules.headers import SampleLimits, header_of
from rollog.rules.verdicts import current_verdict
from schemas import Disposition, Sample, Segment, int32_array

limits = SampleLimits(
    num_partitions=4, num_replicas=8, temperature=1.0, num_vocabulary=11, max_context_tokens=64
)


def a_sample(**versions: int) -> Sample:
    """A session of one fork at least; `own` and `fork` are the versions that made its sequences."""
    sample = next(
        found
        for replica in range(8)
        if (found := a_session(0, replica)).forks and len(found.forks[0].token_ids) > 1
    )
    own, fork = versions.get("own", 2), versions.get("fork", 2)
    return replace(
        sample,
        segments=(made_by(own, len(sample.token_ids)),),
        forks=tuple(replace(each, segments=(made_by(fork, len(each.token_ids)),)) for each in sample.forks),
    )


def made_by(version: int, end: int) -> Segment:
    return Segment(version=version, weights_digest=digest_of(version), start=0, end=end)


def header(sample: Sample, **changes: Any) -> Any:
    return header_of(sample, partition=0, offset=0, digest=bytes(16), limits=replace(limits, **changes))


def verdict_at(version: int, sample: Sample) -> Any:
    ledger = LedgerBuilder()
    for _ in range(version):
        ledger.step()
    return current_verdict(header(sample), ledger.state)


def test_the_oldest_token_of_any_sequence_decides_the_lag() -> None:
    assert verdict_at(3, a_sample(own=3, fork=2)) is None
    assert verdict_at(3, a_sample(own=3, fork=1)) == (Disposition.STALE, reasons.over_lag_bound)
    assert verdict_at(3, a_sample(own=1, fork=3)) == (Disposition.STALE, reasons.over_lag_bound)


def test_weights_that_nobody_committed_are_seen_in_any_sequence() -> None:
    sample = a_sample()
    (first, *others) = sample.forks
    unknown = replace(first, segments=(replace(first.segments[0], weights_digest="f" * 16),))
    assert verdict_at(3, replace(sample, forks=(unknown, *others))) == (
        Disposition.STALE,
        reasons.unknown_weights,
    )


def test_a_rollout_is_as_long_as_what_its_turns_sampled() -> None:
    episode = an_episode(1, 0)
    assert header(episode).num_tokens == int(np.count_nonzero(episode.loss_mask)) < episode.num_tokens
    assert header(forked(episode, np.random.default_rng(0))).num_tokens == header(episode).num_tokens
    assert header(replace(episode, turns=())).num_tokens == header(episode).num_tokens


def test_a_turn_that_is_not_trained_counts_in_the_length() -> None:
    episode = an_episode(1, 0)
    left_out = tuple(replace(turn, untrained="superseded") for turn in episode.turns)
    assert header(replace(episode, turns=left_out)).num_tokens == header(episode).num_tokens


def test_the_filter_of_lengths_asks_for_sampled_tokens_and_not_for_what_environments_wrote() -> None:
    members = [header(an_episode(1, replica)) for replica in range(4)]
    sampled = sum(member.num_tokens for member in members) / 4
    whole = sum(an_episode(1, replica).num_tokens for replica in range(4)) / 4
    assert sampled < whole
    fits = groups_config(group_size=4, response_tokens_mean_bounds=(sampled, sampled + 0.25))
    assert filter_reason(members, fits) is None
    too_long = groups_config(group_size=4, response_tokens_mean_bounds=(0, sampled - 0.25))
    assert filter_reason(members, too_long) == reasons.too_long


def longest(sample: Sample) -> int:
    return max(len(row.prompt_token_ids) + len(row.token_ids) for row in sample.rows())


def test_each_sequence_must_fit_the_context_and_all_of_them_together_need_not() -> None:
    sample = a_sample()
    room = longest(sample)
    assert sum(len(row.token_ids) for row in sample.rows()) + len(sample.prompt_token_ids) > 0
    assert header(sample, max_context_tokens=room).defect is None
    forks = (replace(sample.forks[0], context=int32_array([1] * 60)), *sample.forks[1:])
    defect = header(replace(sample, forks=forks)).defect
    assert defect is not None
    assert "of sequence 1, the context has 64" in defect


@pytest.mark.parametrize("name", ["context", "token_ids"])
def test_ids_outside_the_vocabulary_are_found_in_forks(name: str) -> None:
    sample = a_sample()
    (first, *others) = sample.forks
    ids = np.array(getattr(first, name))
    ids[-1] = 11
    changes: dict[str, Any] = {name: int32_array(ids)}
    wrong = replace(first, **changes)
    defect = header(replace(sample, forks=(wrong, *others))).defect
    assert defect is not None
    assert defect.startswith(f"forks[0].{name}[{len(ids) - 1}] is 11, outside the model's vocabulary of 11")
