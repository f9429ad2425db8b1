"""Rewards that somebody writes before the attempt they name is ordered: trainer, restarted trainer and audit agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.late_scorer import rewards_named
from support.simulated_run import Plan, SimulatedRun

from consumers.audit.auditor import audit_run
from consumers.ledger import read_ledger
from rollog.kernel.weights import WeightsStore

if TYPE_CHECKING:
    from collections.abc import Callable

plan = Plan(
    late_rewards=True,
    num_steps=4,
    groups_per_batch=1,
    filters={"filter_zero_signal": False},
)
early = "g2.r1.a0"


def nothing(_run: SimulatedRun) -> None:
    """The trainer that read it goes on."""


def restart(run: SimulatedRun) -> None:
    """The next trainer reads it again, when its attempt is ordered."""
    while not any(run.auditor.ledger.closed_groups):
        run.calm_round()
    run.kill_trainer()
    run.start_trainer()


@pytest.mark.parametrize("happens", [nothing, restart])
def test_a_reward_that_comes_before_its_order_counts(happens: Callable[[SimulatedRun], None]) -> None:
    with SimulatedRun(plan) as run:
        assert run.scorer is not None
        run.scorer.write(early, 77.0)
        run.turn_trainer()
        happens(run)
        run.come_to_the_end()
        report = audit_run(run.broker, run.topics, WeightsStore(run.trainer_settings.weights_uri))
        assert report.is_clean, "\n".join(report.lines())
        named = rewards_named([entry.record for entry in read_ledger(run.broker, run.topics)])
        assert named[early] == 0
