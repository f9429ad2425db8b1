"""What may be said anew when a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from support.builders import LedgerBuilder

from rollog.cli.main import cli
from rollog.kernel.errors import ConfigError
from rollog.run.local_run import RoleFlags, role_specs
from rollog.settings.changes import resumed_changes
from rollog.settings.in_force import settings_in_force
from rollog.settings.scopes import shared_out
from rollog.settings.settings import Settings
from rollog.settings.sources import assigned


def changes(ledger: LedgerBuilder, **wanted: object) -> dict[str, object]:
    settings = Settings().changed(run={"name": "first"})
    return resumed_changes(
        settings_in_force(settings, ledger.state.changed_settings()),
        {key.replace("__", "."): value for key, value in wanted.items()},
        run="first",
        is_over=ledger.state.is_closed,
    )


def test_only_what_differs_from_what_is_in_force_is_a_change() -> None:
    ledger = LedgerBuilder()
    assert changes(ledger, optimizer__learning_rate=1e-6, groups__group_size=8) == {}
    assert changes(ledger, optimizer__learning_rate=1e-4) == {"optimizer.learning_rate": 1e-4}
    ledger.amend('{"optimizer.learning_rate": 0.0001}')
    assert changes(ledger, optimizer__learning_rate=1e-4) == {}
    assert changes(ledger, optimizer__learning_rate=1e-6) == {"optimizer.learning_rate": 1e-6}


def test_beside_another_algorithm_everything_that_is_said_of_it_counts() -> None:
    ledger = LedgerBuilder()
    told = changes(ledger, algorithm__type="gspo", algorithm__clip_low=0.2, optimizer__learning_rate=1e-6)
    assert told == {"algorithm.type": "gspo", "algorithm.clip_low": 0.2}
    assert changes(ledger, algorithm__type="grpo", algorithm__clip_low=0.2) == {}


def test_a_setting_can_be_taken_back_to_none() -> None:
    ledger = LedgerBuilder()
    ledger.amend('{"algorithm.weight_high": 2.0}')
    assert changes(ledger, **assigned(["algorithm.weight_high=null"])) == {"algorithm.weight_high": None}


def test_everything_that_cannot_change_is_named() -> None:
    with pytest.raises(ConfigError, match=r"groups\.group_size, model\.dtype cannot change: run first keeps"):
        changes(LedgerBuilder(), groups__group_size=2, model__dtype="bfloat16", optimizer__learning_rate=1e-4)


def test_settings_that_contradict_others_of_the_run_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.num_minibatches = 1000 is more than the rollouts"):
        changes(LedgerBuilder(), trainer__num_minibatches=1000)


def test_nothing_of_a_run_that_is_over_changes() -> None:
    ledger = LedgerBuilder()
    ledger.close()
    assert changes(ledger, optimizer__learning_rate=1e-6) == {}
    with pytest.raises(ConfigError, match="run first is over"):
        changes(ledger, optimizer__learning_rate=1e-4)


def test_assignments_are_of_this_machine_or_of_the_run() -> None:
    local = ("model.path=/here", "run.prefix=other", "rollout.capacity=3")
    of_the_run = ("optimizer.learning_rate=1", "run.num_steps=4")
    assert shared_out([*of_the_run, *local]) == (local, of_the_run)
    assert assigned(of_the_run) == {"optimizer.learning_rate": 1.0, "run.num_steps": 4}
    with pytest.raises(ConfigError, match=r"--amend optimizer\.lr\)"):
        assigned(["optimizer.lr=1"], "--amend")


def test_the_trainer_alone_is_told_what_changes() -> None:
    flags = RoleFlags(common=("--set", "model.path=/here"), trainer=("--amend", "run.num_steps=4"))
    specs = role_specs(
        Settings().changed(run={"name": "first"}), "127.0.0.1:1", Path("home"), Path("logs"), 1, flags=flags
    )
    assert all("model.path=/here" in spec.command for spec in specs)
    assert [spec.name for spec in specs if "--amend" in spec.command] == ["trainer"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume", "one", "--run", "two"], "RUN is one and --run is two"),
        (["replay", "one", "--run", "two"], "RUN is one and --run is two"),
    ],
)
def test_one_run_is_named(words: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "optimizer.learning_rate=1"], "name the answer with --into NAME"),
        (["--into", "other"], "--into other needs --set"),
    ],
)
def test_a_question_has_settings_and_a_name(words: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["replay", "one", *words])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
