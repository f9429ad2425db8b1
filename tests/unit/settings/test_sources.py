"""Settings from file, environment and flags, and their errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from rollog.kernel.errors import ConfigError
from rollog.settings.local import local_layers, settings_of_run
from rollog.settings.settings import Settings, check_files, config_sha256, with_absolute_paths
from rollog.settings.sources import demo_settings, load_settings

if TYPE_CHECKING:
    from pathlib import Path


def loaded(
    tmp_path: Path, text: str = "", environment: dict[str, str] | None = None, *assignments: str
) -> Settings:
    config = tmp_path / "run.toml"
    config.write_text(text)
    return load_settings(config, environment=environment, assignments=assignments)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path) == Settings()


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    text = "[groups]\ngroups_per_batch = 1\ngroup_size = 2\nmax_attempts = 5\nmax_lost = 6"
    environment = {"ROLLOG_GROUPS__GROUP_SIZE": "3", "ROLLOG_GROUPS__MAX_ATTEMPTS": "7"}

    groups = loaded(tmp_path, text, environment, "groups.max_attempts=8", "trainer.num_minibatches=1").groups

    assert (groups.groups_per_batch, groups.group_size, groups.max_attempts) == (1, 3, 8)
    assert (groups.max_lost, groups.redundant_replicas) == (6, 0)


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("freshness.alpha=0.5", 0.5),
        ("freshness.alpha=auto", "auto"),
        ("freshness.alpha=[[0, 0.0], [10, 2]]", ((0, 0.0), (10, 2.0))),
        ("freshness.barrier_every_steps=8", 8),
        ("optimizer.betas=[0.8, 0.9]", (0.8, 0.9)),
        ("run.name=0421", "0421"),
        ('model.path="quoted"', "quoted"),
        ("model.path=a=b", "a=b"),
        ("data.shuffle=false", False),
        ("freshness.action=drop", "drop"),
        ("metrics.port=0", 0),
        ("rollout.engine_args={max_num_seqs = 8}", {"max_num_seqs": 8}),
    ],
)
def test_text_is_read_as_its_keys_type(tmp_path: Path, assignment: str, value: object) -> None:
    section, key = assignment.partition("=")[0].split(".")

    assert getattr(getattr(loaded(tmp_path, "", None, assignment), section), key) == value


def test_single_engine_arguments_can_be_set(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "[rollout.engine_args]\nseed = 1",
        None,
        "rollout.engine_args.max_num_seqs=8",
        "rollout.engine_args.quantization=fp8",
    )

    assert settings.rollout.engine_args == {"seed": 1, "max_num_seqs": 8, "quantization": "fp8"}


@pytest.mark.parametrize(
    ("text", "environment", "assignments", "message"),
    [
        (
            "[groups]\ngroup_sise = 4",
            {},
            (),
            r"groups\.group_sise \(.*run\.toml\).*did you mean 'group_size'",
        ),
        ("[group]\ngroup_size = 4", {}, (), r"section \[group\] \(.*run\.toml\).*did you mean 'groups'"),
        ("[groups]\nzzz = 4", {}, (), r"groups\.zzz .*known are .*group_size, groups_per_batch"),
        ("[groups]\ngroup_size = 'many'", {}, (), r"groups\.group_size = 'many' \(.*run\.toml\).*integer"),
        ("[groups]\ngroup_size = '4'", {}, (), r"groups\.group_size = '4' .*integer"),
        ("[groups]\ngroup_size = 0", {}, (), r"groups\.group_size = 0 .*greater than or equal to 1"),
        ("[freshness]\nalpha = nan", {}, (), r"freshness\.alpha = nan .*finite"),
        ("[freshness]\nalpha = -1", {}, (), r"freshness\.alpha = -1 \(.*run\.toml\): give a finite number"),
        ("[freshness]\nalpha = 'fast'", {}, (), r"freshness\.alpha = 'fast' .*\"auto\", or a schedule"),
        ("[freshness]\nalpha = [[0, 1.0], [0, 2.0]]", {}, (), r"begin with 0 and rise, these are \[0, 0\]"),
        ("[freshness]\nalpha = [[3, 1.0]]", {}, (), r"begin with 0 and rise, these are \[3\]"),
        ("[freshness]\nalpha = []", {}, (), r"begin with 0 and rise, these are \[\]"),
        ("[freshness]\nalpha = [[0, nan]]", {}, (), r"freshness\.alpha = .*finite"),
        ("[freshness]\nbarrier_every_steps = 1", {}, (), r"barrier_every_steps = 1 .*equal to 2"),
        ("[freshness]\nauto_max = 0.5", {}, (), r"auto_start = 1 is not between .*auto_max = 0\.5; move one"),
        ("seed = 4", {}, (), r"seed stands outside of a section"),
        ("[groups", {}, (), r"run\.toml is not valid TOML"),
        ("", {"ROLLOG_GROUPS__GROUP_SISE": "4"}, (), r"environment variable ROLLOG_GROUPS__GROUP_SISE"),
        ("", {"ROLLOG_GROUPS__GROUP_SIZE": "x"}, (), r"groups\.group_size = 'x' \(environment variable"),
        ("", {"ROLLOG_GROUPS__": "x"}, (), r"not of the form ROLLOG_SECTION__KEY"),
        ("", {}, ("groups.group_size=x",), r"groups\.group_size = 'x' \(--set groups\.group_size=x\)"),
        (
            "",
            {},
            ("algorithm.dual_clip=abc",),
            r"algorithm\.dual_clip = 'abc' \(--set algorithm\.dual_clip=abc\)",
        ),
        ("", {}, ("group_size=4",), r"--set group_size=\.\.\. is not of the form section\.key=value"),
        ("", {}, ("groups.group_size",), r"is not of the form section\.key=value"),
        ("", {}, ("run.seed=-1",), r"run\.seed = -1 \(--set run\.seed=-1\).*greater than or equal to 0"),
        ("[run]\nname = 'Not A Name'", {}, (), r"run\.name = 'Not A Name'"),
        ("[sampling]\ntop_p = 0.9", {}, (), r"sampling\.top_p = 0\.9 would make .*run\.toml"),
        ("[sampling]\nmax_tokens = 5000", {}, (), r"leaves no room for a prompt within model\.max_context"),
        ("[groups]\ngroup_size = 1", {}, (), r"groups\.group_size = 1 with groups\.filter_zero_signal"),
        ("[broker]\nmin_insync_replicas = 2", {}, (), r"no record could be written"),
        (
            "[groups]\nreward_mean_bounds = [0.5, 0.5]",
            {},
            (),
            r"groups\.reward_mean_bounds = \[0\.5, 0\.5\]: the first bound must be below the second",
        ),
        (
            "[groups]\nresponse_tokens_mean_bounds = [9, 3]",
            {},
            (),
            r"groups\.response_tokens_mean_bounds = \[9\.0, 3\.0\]: the first bound must be below",
        ),
        (
            "[groups]\ngroup_size = 4\npass_rate_bounds = [0.3, 0.45]",
            {},
            (),
            r"groups\.pass_rate_bounds = \[0\.3, 0\.45\] lets no group .*multiple of 1/4; widen the bounds",
        ),
        (
            "[groups]\npass_rate_bounds = [0.3, 1.5]",
            {},
            (),
            r"groups\.pass_rate_bounds.* = 1\.5 .*equal to 1",
        ),
        ("[groups]\nmax_truncated_share = 1.0", {}, (), r"groups\.max_truncated_share = 1\.0 .*less than 1"),
        (
            "[groups]\nresponse_tokens_mean_bounds = [64, 99]\n[sampling]\nmax_tokens = 32",
            {},
            (),
            r"filters every group: no response is longer than sampling\.max_tokens = 32; lower",
        ),
    ],
)
def test_errors_name_source_key_value_and_remedy(
    tmp_path: Path, text: str, environment: dict[str, str], assignments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, text, environment, *assignments)


def test_variables_without_two_underscores_are_left_alone(tmp_path: Path) -> None:
    environment = {"ROLLOG_HOME": "/x", "ROLLOG_LOG_LEVEL": "debug", "OTHER__THING": "1"}

    assert loaded(tmp_path, "", environment) == Settings()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config .*none\.toml: there is no such file"):
        load_settings(tmp_path / "none.toml")


def test_without_a_file_the_demos_settings_are_the_base() -> None:
    settings = demo_settings()

    assert settings.run.num_steps != Settings().run.num_steps
    assert settings.model.path is None


def test_the_manifest_gives_the_same_settings_back(tmp_path: Path) -> None:
    text = (
        "[groups]\ngroup_size = 4\n[optimizer]\nbetas = [0.5, 0.6]\n[freshness]\nalpha = [[0, 0.0], [3, 1.5]]"
    )
    settings = loaded(tmp_path, text)

    assert Settings.from_manifest(settings.to_manifest()) == settings
    assert config_sha256(settings.to_manifest()) == config_sha256(settings.to_manifest())


def test_the_manifest_holds_no_address_and_no_secret(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "[broker]\nbootstrap_servers = 'kafka:9092'\n"
        "[weights]\nuri = 's3://me:hush@bucket/path'\n"
        "[rollout.engine_args]\nhf_token = 'hush'\nmax_num_batched_tokens = 5",
    )

    manifest = settings.to_manifest()

    assert "hush" not in manifest
    assert "kafka:9092" not in manifest
    assert json.loads(manifest)["weights"]["uri"] == "s3://bucket/path"
    assert json.loads(manifest)["rollout"]["engine_args"] == {"max_num_batched_tokens": 5}


def test_a_manifest_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit this version of rollog"):
        Settings.from_manifest('{"run": {"colour": "red"}}')


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.path=/no/such/directory", r"model\.path = '/no/such/directory' does not exist"),
        ("model.path=./here", r"model\.path = './here' does not exist"),
        ("model.path=models/missing", r"model\.path = 'models/missing' does not exist"),
        ("model.path=not a name", r"model\.path = 'not a name' does not exist"),
        ("model.path=models/a file", r"is a file; name the directory"),
        ("model.path=models", r"model\.path = 'models' has no config\.json"),
        ("data.train=rows.jsonl", r"data\.train = 'rows\.jsonl' does not exist"),
        ("data.held_out=models", r"data\.held_out = 'models' is a directory"),
        ("data.train=gsm8k", r"data\.train = 'gsm8k' needs a reward function"),
        (
            "reward.function=exact_match",
            r"reward\.function = 'exact_match' is not of the form module:function",
        ),
    ],
)
def test_what_does_not_exist_is_noticed_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assignment: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a file").touch()

    with pytest.raises(ConfigError, match=message):
        check_files(loaded(tmp_path, "", None, assignment))


def test_names_of_published_models_and_datasets_are_taken_as_they_are(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path, "", None, "model.path=Qwen/Qwen3-0.6B", "data.train=openai/gsm8k", "reward.function=a.b:c"
    )

    check_files(settings)

    assert with_absolute_paths(settings) == settings


def test_local_files_are_named_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").touch()

    settings = with_absolute_paths(loaded(tmp_path, "", None, "data.train=rows.jsonl"))

    assert settings.data.train == str(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("text", "environment", "assignments"),
    [
        ("password = 'hush'", {}, ()),
        ("[broker]\nsasl_password = 'hush'", {}, ()),
        ("[brokers]\nsasl_password = 'hush'", {}, ()),
        ("[broker]\nbootstrap_servers = ['hush']", {}, ()),
        ("[rollout]\nengine_args = 'hush'", {}, ()),
        ("[rollout.engine_args]\nhf_token = ['hush']", {}, ()),
        ("[rollout.engine_args.loader]\nsecret = 'hush'", {}, ()),
        ("[weights]\nuri = ['s3://me:hush@b']", {}, ()),
        ("[metrics]\nport = 'https://me:hush@host'", {}, ()),
        ("", {"ROLLOG_BROKER__SASL_PASSWORD": "hush"}, ()),
        ("", {"ROLLOG_SECRETS__SASL": "hush"}, ()),
        ("", {"ROLLOG_METRICS__PORT": "https://h/?sig=hush"}, ()),
        ("", {}, ("broker.sasl_password=hush",)),
        ("", {}, ("secrets.sasl=hush",)),
        ("", {}, ("password=hush",)),
        ("", {}, ("hush",)),
        ("", {}, ("rollout.engine_args={hf_token = 'hush', seed = []}",)),
        ("", {}, ("rollout.engine_args={hf_token = 'hush'",)),
        ("", {}, ("metrics.port=https://me:hush@host",)),
    ],
)
def test_no_error_prints_the_value_of_a_secret_or_of_an_unknown_key(
    tmp_path: Path, text: str, environment: dict[str, str], assignments: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text, environment, *assignments)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "assignment", ["broker.sasl_password=hush", "groups.hush=1", "rollout.engine_args=hush"]
)
def test_what_a_role_cannot_take_is_refused_without_its_value(assignment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        local_layers(None, {}, [assignment])
    assert "=hush" not in str(caught.value)
    assert "'hush'" not in str(caught.value)


def test_a_manifest_that_does_not_fit_is_refused_without_its_values() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_manifest('{"broker": {"sasl_password": "hush"}, "run": {"seed": "hush"}}')
    assert "broker.sasl_password" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_role_connects_with_its_own_address_and_the_manifest_holds_the_public_one(tmp_path: Path) -> None:
    address = "s3://me:hush@bucket/path?region=x&X-Amz-Signature=hush"
    text = (
        f"[weights]\nuri = '{address}'\n[data]\ntrain = 'https://me:hush@host/rows?sig=hush'\n[model]\n"
        'path = \'https://hush@host/model\'\n[rollout.engine_args]\nloader = \'{"secret": "hush", "a": 1}\''
    )
    settings = loaded(tmp_path, text)
    manifest = settings.to_manifest()
    assert "hush" not in manifest
    assert json.loads(manifest)["weights"]["uri"] == "s3://bucket/path?region=x"
    own = local_layers(tmp_path / "run.toml", {}, [])
    assert settings_of_run(manifest, own).weights.uri == address
    assert settings_of_run(manifest, local_layers(None, {}, [])).weights.uri == "s3://bucket/path?region=x"


@pytest.mark.parametrize("key", ["model.path", "data.train"])
def test_an_address_that_does_not_exist_is_told_without_its_user(tmp_path: Path, key: str) -> None:
    settings = loaded(tmp_path, "", None, f"{key}=s3://me:hush@bucket/rows.jsonl")
    with pytest.raises(ConfigError, match=r"s3://bucket") as caught:
        check_files(settings)
    assert "hush" not in str(caught.value)
