"""What is in force at a revision, for everybody who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.builders import LedgerBuilder
from support.small_training import trainer_settings

from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError, LedgerError
from rollog.settings.groups import FreshnessConfig
from rollog.settings.in_force import num_steps_in_force, section_in_force, settings_in_force
from rollog.settings.settings import Settings
from trainer.settings import settings_at

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.settings import TrainerSettings


@pytest.fixture
def ledger() -> LedgerBuilder:
    """Two revisions."""
    builder = LedgerBuilder()
    builder.amend('{"optimizer.learning_rate": 0.0001, "freshness.alpha": [[0, 0.0], [5, 2.0]]}')
    builder.amend('{"run.num_steps": 80, "optimizer.learning_rate": 0.0002}')
    return builder


@pytest.fixture
def of_trainer(tmp_path: Path) -> TrainerSettings:
    return trainer_settings(tmp_path, RunTopics("rollog-test", "run"), "model")


def test_each_revision_adds_to_those_before(ledger: LedgerBuilder) -> None:
    rates = []
    steps = []
    for revision in range(3):
        settings = settings_in_force(Settings(), ledger.state.changed_settings(revision))
        rates.append(settings.optimizer.learning_rate)
        steps.append(settings.run.num_steps)
    assert rates == [1e-6, 1e-4, 2e-4]
    assert steps == [60, 60, 80]


def test_trainer_dispatcher_and_view_see_the_same(ledger: LedgerBuilder, of_trainer: TrainerSettings) -> None:
    changes = ledger.state.changed_settings()
    freshness = section_in_force("freshness", FreshnessConfig(), changes)
    trainer = settings_at(of_trainer, ledger.state, 2)
    whole = settings_in_force(Settings(), changes)

    assert freshness.alpha == trainer.freshness.alpha == whole.freshness.alpha == ((0, 0.0), (5, 2.0))
    assert num_steps_in_force(60, changes) == ledger.state.num_steps(60) == trainer.run_config.num_steps == 80


def test_a_section_without_changes_is_the_same_one() -> None:
    section = FreshnessConfig(alpha=2.0)
    assert section_in_force("freshness", section, {"optimizer.learning_rate": 1e-4}) is section


def test_what_is_set_and_not_changed_stays() -> None:
    settings = Settings().changed(algorithm={"type": "gspo", "clip_low": 0.1})
    after = settings_in_force(settings, {"algorithm.clip_high": 0.3}).algorithm
    assert (after.type, after.clip_low, after.clip_high) == ("gspo", 0.1, 0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer.learning_rate": -1.0}, r"optimizer\.learning_rate = -1\.0: .*greater than 0"),
        ({"optimizer.momentum": 0.9}, r"optimizer\.momentum = 0\.9: "),
        ({"colours.red": 1}, r"section \[colours\]"),
    ],
)
def test_what_does_not_fit_is_named(
    changes: dict[str, object], message: str, of_trainer: TrainerSettings
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_in_force(Settings(), changes)
    with pytest.raises(ConfigError, match=message):
        of_trainer.amendable.with_changes(changes)


def test_a_ledger_of_another_version_ends_a_trainer(of_trainer: TrainerSettings) -> None:
    builder = LedgerBuilder()
    builder.amend('{"groups.group_size": 4}')
    with pytest.raises(LedgerError, match=r"settings of revision 1 .*section \[groups\].*version that wrote"):
        settings_at(of_trainer, builder.state, 1)
