"""Roles that are started get how to connect by their environment; the embedded broker takes none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollog.kernel.errors import BrokerRefused, ConfigError, exit_status, exit_status_configuration
from rollog.run.connection import broker_at, connect, embedded_unless_named
from rollog.run.local_run import role_specs
from rollog.run.request import RunRequest
from rollog.run.resuming import resumption
from rollog.settings.settings import Settings
from rollog.settings.sources import security_config

table = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "ada", "password_env": "ADA"}


def test_roles_get_the_table_by_their_environment_and_not_by_arguments() -> None:
    settings = Settings().changed(run={"name": "first"}, broker={"security": table})
    specs = role_specs(settings, "127.0.0.1:1", Path("home"), Path("logs"), 2)
    assert len(specs) == 4
    for spec in specs:
        assert security_config(None, spec.environment) == settings.broker.security
        assert not any("SASL" in word or "broker.security" in word for word in spec.command)


def test_assignments_of_the_table_are_on_no_roles_command_line(tmp_path: Path) -> None:
    request = RunRequest(
        config=None,
        home=tmp_path,
        assignments=("broker.security.protocol=SSL", "metrics.port=0"),
        run="first",
        broker="kafka:9093",
    )
    assert resumption(request).role_flags({}).common == ("--set", "metrics.port=0")


def test_the_embedded_broker_takes_no_table(tmp_path: Path) -> None:
    config = Settings().changed(broker={"security": table}).broker
    with pytest.raises(ConfigError, match="the embedded one speaks plain text"):
        connect(config, tmp_path)
    with (
        pytest.raises(ConfigError, match=r"leave broker\.security out"),
        embedded_unless_named(config, tmp_path),
    ):
        pass
    with pytest.raises(ConfigError, match="the embedded one speaks plain text"):
        broker_at("127.0.0.1:1", config)


def test_a_refusal_is_an_end_that_no_supervisor_starts_again() -> None:
    assert exit_status(BrokerRefused("the password is wrong")) == exit_status_configuration
