"""Dashboards, alert rules and the scrape configuration speak of metrics and places that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from support.dashboards import dashboards, queries, rules

from rollog.kernel.metrics import Metrics, catalogue_table

infra = Path(__file__).parents[3] / "infra"
parts_of_kind = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


def exported() -> set[str]:
    """Every name that a scrape of rollog can show."""
    entries = Metrics().catalogue
    names = {entry.name for entry in entries if entry.kind not in parts_of_kind}
    return names | {entry.name + part for entry in entries for part in parts_of_kind.get(entry.kind, ())}


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\brollog_\w+", expression)) - {"rollog_run"}  # a label


def test_what_is_exported_is_what_the_catalogue_documents() -> None:
    documented = set(re.findall(r"^\| `(rollog_\w+)`", catalogue_table(), re.MULTILINE))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()} >= {
        name for name in documented if not name.endswith(("_sum", "_count"))
    }


@pytest.mark.parametrize("dashboard", dashboards, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_asks_for_metrics_that_exist(dashboard: Path) -> None:
    asked = dict(queries(dashboard))
    unknown = {title: metrics_of(expression) - exported() for title, expression in queries(dashboard)}
    assert asked
    assert not {title: names for title, names in unknown.items() if names}


def test_the_dashboards_together_show_every_metric_of_the_catalogue() -> None:
    shown = {
        name for dashboard in dashboards for _, query in queries(dashboard) for name in metrics_of(query)
    }
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} | shown
    assert {entry.name for entry in Metrics().catalogue} - stems == set()


def test_every_alert_asks_for_metrics_that_exist_and_names_a_remedy() -> None:
    for rule in rules():
        assert metrics_of(rule["expr"]), rule["alert"]
        assert metrics_of(rule["expr"] + str(rule["annotations"])) <= exported(), rule["alert"]
        assert {"summary", "remedy"} <= set(rule["annotations"]), rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_panels_of_a_dashboard_lie_beside_each_other() -> None:
    for dashboard in dashboards:
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(dashboard.read_text())["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, f"{dashboard.name}: {panel['title']}"
            taken |= cells


def test_dashboards_use_the_provisioned_data_source_and_have_names_of_their_own() -> None:
    source = yaml.safe_load((infra / "grafana/provisioning/datasources/prometheus.yml").read_text())
    uids = [json.loads(path.read_text())["uid"] for path in dashboards]
    assert source["datasources"][0]["uid"] == "prometheus"
    assert len(set(uids)) == len(uids) == 4
    for path in dashboards:
        variable = json.loads(path.read_text())["templating"]["list"][0]
        assert variable["current"]["value"] == "prometheus"


def test_prometheus_scrapes_the_roles_of_the_composition_at_their_port() -> None:
    services = yaml.safe_load((infra / "docker-compose.yml").read_text())["services"]
    for job in yaml.safe_load((infra / "prometheus/prometheus.yml").read_text())["scrape_configs"]:
        (place,) = job["dns_sd_configs"]
        (name,) = place["names"]
        assert services[name]["environment"]["ROLLOG_METRICS__PORT"] == place["port"]
