"""Where a run has a registry: created, joined and refused as the registry says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from support.broker_topics import read_to_end
from support.registered_run import settings_of
from support.small_registry import SmallRegistry, Trouble, small_registry

from producers.rewards.late import LateRewards, framed_for_rewards
from rollog.cli.main import cli
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError, RegistryRefused, RegistryUnreachable
from rollog.kernel.registry.framed_broker import FramedBroker
from rollog.kernel.registry.wire_format import schema_id_of
from rollog.kernel.runs import read_runs
from rollog.run.creation import create_run, create_run_if_missing, specs_of_run
from rollog.run.framing import checked_at_start, framed_broker, register_schemas, registry_variables
from rollog.run.local_run import role_specs
from rollog.settings.registry import RegistryConfig
from schemas import Reward
from schemas.codec import decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.settings.settings import Settings


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as served:
        yield served


def a_run(home: Path, url: str | None, **config: Any) -> Settings:
    return settings_of(home).changed(broker={"framing": "registry"}, registry={"url": url, **config})


def test_schemas_are_registered_before_the_run(registry: SmallRegistry, tmp_path: Path) -> None:
    broker = MemoryBroker()
    create_run(broker, a_run(tmp_path, registry.url))
    assert "rollog.first.samples-value" in registry.subjects
    assert "rollog.first.control-rollog.Grant" in registry.subjects
    assert set(registry.levels.values()) == {"BACKWARD_TRANSITIVE"}
    num_asked = len(registry.asked)
    _, is_new = create_run_if_missing(broker, a_run(tmp_path, registry.url))
    assert not is_new
    assert not any(each.endswith("/versions") for each in registry.asked[num_asked:])


def test_a_role_that_may_only_read_the_registry_makes_a_run_of_what_others_registered(
    registry: SmallRegistry, tmp_path: Path
) -> None:
    settings = a_run(tmp_path, registry.url)
    register_schemas(settings)
    registry.refused_methods, registry.refused_paths = {"POST", "PUT"}, "/versions$|^/config/"
    create_run(MemoryBroker(), settings)
    del registry.subjects["rollog.first.weights-rollog.WeightVersion"]
    with pytest.raises(
        RegistryRefused, match=r"rollog\.first\.weights-rollog\.WeightVersion.*refuses.*not permitted"
    ):
        create_run(MemoryBroker(), settings)


def test_with_the_strategy_record_runs_share_their_subjects(registry: SmallRegistry, tmp_path: Path) -> None:
    create_run(MemoryBroker(), a_run(tmp_path, registry.url, subjects="record"))
    assert "rollog.Sample" in registry.subjects
    assert not any("first" in subject for subject in registry.subjects)


@pytest.mark.parametrize("trouble", [Trouble.FAILING, Trouble.HTML, Trouble.SILENT])
def test_without_an_answer_there_is_no_run(registry: SmallRegistry, tmp_path: Path, trouble: Trouble) -> None:
    registry.trouble = trouble
    broker = MemoryBroker()
    with pytest.raises(RegistryUnreachable, match=r"127\.0\.0\.1"):
        create_run(broker, a_run(tmp_path, registry.url, timeout_seconds=0.5))
    assert read_runs(broker, "rollog") == {}


def test_a_run_without_an_address_of_its_registry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"registry\.url \(ROLLOG_REGISTRY__URL\)"):
        create_run(MemoryBroker(), a_run(tmp_path, None))


def test_a_role_waits_for_its_registry_and_then_writes_without_it(
    registry: SmallRegistry, tmp_path: Path
) -> None:
    settings = a_run(tmp_path, registry.url)
    create_run(MemoryBroker(), settings)
    broker = framed_broker(MemoryBroker(), settings)
    assert isinstance(broker, FramedBroker)
    registry.trouble = Trouble.FAILING
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 5:
            registry.trouble = None

    checked_at_start(broker, settings, 60.0, clock=lambda: now[0], sleep=sleep)
    assert now[0] > 5
    registry.trouble = Trouble.FAILING
    assert broker.ids is not None
    assert all(broker.ids.id_on(*place) for place in broker.ids._subjects)
    with pytest.raises(RegistryUnreachable, match="no leader"):
        checked_at_start(broker, settings, 0.0)


def test_a_role_ends_where_a_schema_is_missing(registry: SmallRegistry, tmp_path: Path) -> None:
    settings = a_run(tmp_path, registry.url)
    create_run(MemoryBroker(), settings)
    del registry.subjects["rollog.first.weights-rollog.WeightVersion"]
    with pytest.raises(
        RegistryRefused,
        match=r"rollog\.first\.weights-rollog\.WeightVersion: WeightVersion .*schemas register",
    ):
        checked_at_start(framed_broker(MemoryBroker(), settings), settings, 60.0)


def test_without_a_registry_nothing_is_wrapped_or_asked(tmp_path: Path) -> None:
    broker, settings = MemoryBroker(), settings_of(tmp_path)
    assert framed_broker(broker, settings) is broker
    checked_at_start(broker, settings, 0.0)
    assert registry_variables(settings) == {}


def test_the_address_reaches_the_roles_and_stays_out_of_the_manifest(
    registry: SmallRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_VARIABLE", "me:planted-word")
    settings = a_run(tmp_path, registry.url, credentials_variable="PLANTED_VARIABLE")
    manifest = create_run(MemoryBroker(), settings)
    assert registry.url not in manifest.config_json
    assert "planted" not in manifest.config_json.lower()
    for role in role_specs(settings, "memory", tmp_path, tmp_path, 1):
        assert role.environment["ROLLOG_REGISTRY__URL"] == registry.url
        assert role.environment["ROLLOG_REGISTRY__CREDENTIALS_VARIABLE"] == "PLANTED_VARIABLE"
        assert not any(registry.url in word or "planted" in word for word in role.command)


def test_topics_have_room_for_the_header(tmp_path: Path) -> None:
    framed = {spec.name: spec for spec in specs_of_run(a_run(tmp_path, "http://127.0.0.1:1"))}
    for spec in specs_of_run(settings_of(tmp_path)):
        size = spec.config.get("max.message.bytes")
        if size is not None:
            assert int(framed[spec.name].config["max.message.bytes"]) == int(size) + 64


@pytest.mark.parametrize(
    ("line", "said"), [("no-colon", "holds no credentials"), ("", "holds no credentials")]
)
def test_credentials_that_are_none_are_named_by_their_place(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "file").write_text(line)
    settings = a_run(tmp_path, "http://127.0.0.1:1", credentials_file=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=rf"registry\.credentials_file {said}") as caught:
        framed_broker(MemoryBroker(), settings)
    assert "no-colon" not in str(caught.value)


def test_credentials_of_a_file_are_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("Bearer abc\n")
    with small_registry(credentials="Bearer abc") as registry:
        create_run(MemoryBroker(), a_run(tmp_path, registry.url, credentials_file=str(tmp_path / "file")))
        assert registry.subjects


def late_settings(home: Path, url: str) -> Settings:
    return a_run(home, url).changed(reward={"late": True, "function": None})


def test_rewards_from_outside_are_framed_as_the_rest_of_the_run(
    registry: SmallRegistry, tmp_path: Path
) -> None:
    broker, topics = MemoryBroker(), RunTopics("rollog", "first")
    create_run(broker, late_settings(tmp_path, registry.url))
    framed = framed_for_rewards(broker, topics, RegistryConfig(url=registry.url))
    registry.trouble = Trouble.FAILING
    with LateRewards(framed, topics, scorer="test") as rewards:
        rewards.send("g0.r0.a0", 0.5)
        rewards.flush()
    (stored,) = read_to_end(broker, topics.rewards)
    assert schema_id_of(stored.value) in registry.subjects["rollog.first.rewards-value"]
    (read,) = read_to_end(framed, topics.rewards)
    assert decode_as(Reward, read.value or b"") == Reward(sample_id="g0.r0.a0", reward=0.5, scorer="test")


def test_a_scorer_is_told_at_once_what_its_registry_lacks(registry: SmallRegistry, tmp_path: Path) -> None:
    broker, topics = MemoryBroker(), RunTopics("rollog", "first")
    create_run(broker, late_settings(tmp_path, registry.url))
    with pytest.raises(ConfigError, match=r'registry=\{"url": ...\}\) or ROLLOG_REGISTRY__URL'):
        framed_for_rewards(broker, topics, RegistryConfig())
    del registry.subjects["rollog.first.rewards-value"]
    with pytest.raises(RegistryRefused, match=r"rollog\.first\.rewards-value: Reward .*schemas register"):
        framed_for_rewards(broker, topics, RegistryConfig(url=registry.url))
    registry.trouble = Trouble.FAILING
    with pytest.raises(RegistryUnreachable, match="no leader"):
        framed_for_rewards(broker, topics, RegistryConfig(url=registry.url))


def test_a_scorer_of_a_run_without_a_registry_asks_nobody(tmp_path: Path) -> None:
    broker = MemoryBroker()
    create_run(broker, settings_of(tmp_path).changed(reward={"late": True, "function": None}))
    config = RegistryConfig(url="http://127.0.0.1:9")
    assert framed_for_rewards(broker, RunTopics("rollog", "first"), config) is broker


@pytest.fixture
def config(registry: SmallRegistry, tmp_path: Path) -> list[str]:
    (tmp_path / "run.toml").write_text(
        f'[broker]\nframing = "registry"\n[registry]\nurl = "{registry.url}"\n', encoding="utf-8"
    )
    return ["--run", "first", "--config", str(tmp_path / "run.toml")]


def test_schemas_are_printed_checked_and_registered_by_the_command_line(
    config: list[str], registry: SmallRegistry
) -> None:
    def said(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["topics", "schemas", *words, *config])
        return result.exit_code, f"{result.output} {result.exception or ''}"

    status, printed = said("print")
    assert status == 0
    assert "rollog.first.samples-value record=Sample fingerprint=" in printed
    assert registry.asked == []
    status, printed = said("check")
    assert status != 0
    assert "rollog.first.samples-value: Sample" in printed
    assert said("register")[0] == 0
    status, printed = said("check")
    assert (status, "schemas of run first are registered" in printed) == (0, True)
    status, printed = said("print", "--json")
    assert '"subject": "rollog.first.steps-value"' in printed
    status, printed = said("delete", "--yes")
    assert (status, "deleted " in printed, registry.subjects) == (0, True, {})
    assert "no subject of run first is in the schema registry" in said("delete", "--yes")[1]
    assert "shared by all runs" in said("delete", "--yes", "--set", "registry.subjects=record")[1]


def test_a_run_without_a_registry_has_nothing_to_register() -> None:
    result = CliRunner().invoke(cli, ["topics", "schemas", "check", "--run", "first"])
    assert result.exit_code != 0
    assert "only a run with broker.framing" in f"{result.output} {result.exception}"
