"""The metrics catalogue and its server."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from rollog.kernel.errors import ConfigError
from rollog.kernel.metrics import Metrics, catalogue_table

page = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_documented_catalogue_is_the_one_in_the_code() -> None:
    start, end = "<!-- catalogue -->\n", "<!-- end of catalogue -->"
    text = page.read_text()

    assert text[text.index(start) + len(start) : text.index(end)] == catalogue_table()


def test_every_name_tells_stage_noun_and_unit() -> None:
    for entry in Metrics().catalogue:
        assert re.fullmatch(r"rollog_(dispatcher|rollout|trainer|broker)_[a-z_]+", entry.name)
        assert entry.name.endswith("_total") == (entry.kind == "counter")


def test_attributes_are_called_like_their_metrics() -> None:
    metrics = Metrics()

    for entry in metrics.catalogue:
        assert hasattr(metrics, entry.name.removeprefix("rollog_").removesuffix("_total"))


def test_a_role_shows_the_metrics_of_its_stage_and_of_the_broker() -> None:
    metrics = Metrics(stage="rollout")
    metrics.trainer_reward_mean.set(1.0)

    shown = {family.name for family in metrics.registry.collect()}

    assert {name.split("_")[1] for name in shown} == {"rollout", "broker"}
    assert metrics.catalogue == Metrics().catalogue


def test_every_metric_is_fed_by_a_role() -> None:
    sources = "".join(
        file.read_text()
        for stage in ("producers", "trainer")
        for file in (page.parents[1] / stage).rglob("*.py")
    )
    names = [entry.name.removeprefix("rollog_").removesuffix("_total") for entry in Metrics().catalogue]

    assert [name for name in names if not re.search(rf"metrics\.{name}\b", sources)] == []


def test_labels_are_never_identities() -> None:
    allowed = {
        "end",
        "kind",
        "reason",
        "status",
        "phase",
        "disposition",
        "operation",
        "topic",
        "mode",
        "outcome",
    }

    assert {label for entry in Metrics().catalogue for label in entry.labels} <= allowed


def test_two_roles_in_one_process_do_not_share_a_registry() -> None:
    first, second = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    first.trainer_version.set(5)

    assert second.registry.get_sample_value("rollog_trainer_version") == 0


def test_the_server_shows_values_until_it_is_closed() -> None:
    metrics = Metrics()
    metrics.trainer_verdicts.labels(disposition="trained", reason="").inc(8)

    with metrics.serve("127.0.0.1", 0) as server:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as response:
            text = response.read().decode()
        port = server.port

    assert 'rollog_trainer_verdicts_total{disposition="trained",reason=""} 8.0' in text
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def test_a_port_in_use_is_named_with_a_remedy() -> None:
    with (
        Metrics().serve("127.0.0.1", 0) as server,
        pytest.raises(ConfigError, match=rf"metrics\.port = {server.port}.*choose another port"),
    ):
        Metrics().serve("127.0.0.1", server.port)


def test_an_address_of_another_machine_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.host"):
        Metrics().serve("192.0.2.1", 0)
