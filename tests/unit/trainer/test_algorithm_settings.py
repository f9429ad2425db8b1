"""`[algorithm]`: defaults by type, explicit settings over them, and what becomes of recorded ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest
from pydantic import ValidationError
from support.small_training import trainer_settings

from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError
from rollog.settings.changes import changes_by_type, new_changes
from rollog.settings.settings import Settings
from rollog.settings.training import AlgorithmConfig, AlgorithmType, TrainerConfig
from trainer.settings import amended, changed_by_type

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.settings import TrainerSettings

types: list[AlgorithmType] = [*get_args(AlgorithmType)]
before_there_were_types = {
    "type": "grpo",
    "clip_low": 0.2,
    "clip_high": 0.28,
    "normalize_std": True,
    "aggregation": "token_mean",
}


@pytest.fixture
def settings(tmp_path: Path) -> TrainerSettings:
    return trainer_settings(tmp_path, RunTopics("rollog", "first"), "model")


def test_the_settings_of_a_manifest_that_names_five_keys_are_todays_defaults() -> None:
    manifest = json.loads(Settings().to_manifest())
    manifest["algorithm"] = before_there_were_types
    assert Settings.from_manifest(json.dumps(manifest)).algorithm == AlgorithmConfig()


def test_a_manifest_states_every_setting_so_that_later_defaults_do_not_change_it() -> None:
    settings = Settings(algorithm=AlgorithmConfig(type="gspo"))
    stated = json.loads(settings.to_manifest())["algorithm"]
    assert stated.keys() == AlgorithmConfig.model_fields.keys()
    assert (stated["clip_low"], stated["ratio_level"]) == (3e-4, "sequence_mean")
    assert Settings.from_manifest(settings.to_manifest()) == settings


@pytest.mark.parametrize("name", types)
def test_what_is_set_wins_over_the_type(name: AlgorithmType) -> None:
    assert AlgorithmConfig(type=name, clip_low=0.123).clip_low == 0.123
    assert AlgorithmConfig(type=name, aggregation="sequence_mean").aggregation == "sequence_mean"


def test_constants_are_those_of_the_papers() -> None:
    dapo = AlgorithmConfig(type="dapo")
    assert (dapo.clip_low, dapo.clip_high, dapo.overlong_share) == (0.2, 0.28, 4096 / 20480)
    gspo = AlgorithmConfig(type="gspo")
    assert (gspo.clip_low, gspo.clip_high) == (3e-4, 4e-4)
    topr = AlgorithmConfig(type="topr")
    assert (topr.weight_low, topr.weight_high, topr.ratio_level) == (0.0, 1.0, "sequence")
    assert AlgorithmConfig(type="tis").weight_high == 2.0
    assert AlgorithmConfig(type="decoupled_ppo").weight_high is None
    dr_grpo = AlgorithmConfig(type="dr_grpo")
    assert (dr_grpo.normalize_std, dr_grpo.aggregation) == (False, "sequence_sum")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight_low": 2.0, "weight_high": 1.0}, "weight_low = 2 is above"),
        ({"advantage": "return"}, "set algorithm.normalize_std = false"),
        ({"type": "a3c"}, "Input should be"),
        ({"type": ["grpo"]}, "Input should be"),
        ({"dual_clip": 0.5}, "greater than 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AlgorithmConfig.model_validate(values)


def test_a_constant_that_is_needed_and_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="max_response_tokens is not set"):
        _ = AlgorithmConfig(type="dr_grpo").response_budget
    assert AlgorithmConfig(type="dr_grpo").with_budget(32).response_budget == 32
    assert AlgorithmConfig(max_response_tokens=5).with_budget(32).response_budget == 5


def test_a_new_type_brings_its_defaults_where_the_old_ones_stood() -> None:
    changes = changes_by_type(AlgorithmConfig(clip_high=0.5), {"type": "gspo", "aggregation": "token_mean"})
    assert changes == {
        "type": "gspo",
        "aggregation": "token_mean",
        "ratio_level": "sequence_mean",
        "clip_low": 3e-4,
    }


def test_without_a_new_type_nothing_follows() -> None:
    assert changes_by_type(AlgorithmConfig(), {"type": "grpo", "clip_low": 0.1}) == {
        "type": "grpo",
        "clip_low": 0.1,
    }


@pytest.mark.parametrize("old", types)
@pytest.mark.parametrize("new", types)
def test_changing_from_defaults_gives_defaults(
    settings: TrainerSettings, old: AlgorithmType, new: AlgorithmType
) -> None:
    before = replace(settings, algorithm=AlgorithmConfig(type=old))
    assert changed_by_type(before, {"algorithm.type": new}).algorithm == AlgorithmConfig(type=new)


def test_an_unknown_type_is_a_configuration_error(settings: TrainerSettings) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.type = 'a3c'"):
        changed_by_type(settings, {"algorithm.type": "a3c"})


def test_the_ledger_records_what_a_new_type_changes_so_that_a_redo_need_not_know(
    settings: TrainerSettings,
) -> None:
    in_force = settings
    recorded: dict[str, object] = {}
    for wanted in (
        {"algorithm.clip_low": 3e-4},
        {"algorithm.type": "gspo"},
        {"algorithm.type": "ppo", "optimizer.learning_rate": 1e-3},
        {"algorithm.type": "topr"},
        {"algorithm.type": "grpo", "algorithm.kl_coefficient": 0.1},
    ):
        changes = new_changes(in_force.amendable, wanted, version=0)
        in_force = amended(in_force, changes)
        recorded |= changes
        assert amended(settings, recorded) == in_force
    assert recorded["algorithm.ratio_level"] == "token"
    assert in_force.algorithm.weight_high is None


def test_several_ranks_of_an_engine_that_has_one_are_refused() -> None:
    with pytest.raises(ValidationError, match='num_ranks = 2 needs engine = "deepspeed"'):
        TrainerConfig(engine="torch", num_ranks=2)


@pytest.mark.parametrize(
    ("key", "value"), [("trainer.num_ranks", 2), ("trainer.packing", True), ("trainer.zero_stage", 3)]
)
def test_what_belongs_to_a_run_cannot_change_in_it(
    settings: TrainerSettings, key: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=f"{key} cannot change after a run has begun"):
        new_changes(settings.amendable, {key: value}, version=0)


def test_a_value_head_is_made_when_a_run_begins_or_never(settings: TrainerSettings) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.advantage = 'gae' instead of 'group'"):
        new_changes(settings.amendable, {"algorithm.advantage": "gae"}, version=0)
    with_critic = replace(settings, algorithm=AlgorithmConfig(type="ppo", advantage="gae"))
    with pytest.raises(ConfigError, match=r"algorithm\.advantage = 'batch' instead of 'gae'"):
        new_changes(with_critic.amendable, {"algorithm.advantage": "batch"}, version=0)
    assert new_changes(with_critic.amendable, {"algorithm.value_clip": 0.5}, version=0) == {
        "algorithm.value_clip": 0.5
    }
