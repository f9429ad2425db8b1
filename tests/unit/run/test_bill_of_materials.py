"""The bill of materials: what a licence means, and that what is installed is listed and allowed."""

from __future__ import annotations

import json
from importlib.metadata import distributions
from typing import TYPE_CHECKING

import pytest

from rollog.run.bill_of_materials import (
    Component,
    Verdict,
    cyclonedx,
    installed,
    licence_list,
    main,
    refused_verdicts,
)

if TYPE_CHECKING:
    from pathlib import Path


def a_component(licence: str, name: str = "package") -> Component:
    return Component(name=name, version="1.0", licence=licence)


@pytest.mark.parametrize(
    ("licence", "verdict"),
    [
        ("MIT", Verdict.PERMISSIVE),
        ("Apache Software License", Verdict.PERMISSIVE),
        ("BSD-2-Clause AND Apache-2.0 WITH LLVM-exception", Verdict.PERMISSIVE),
        ("LGPL-2.1-only", Verdict.WEAK_COPYLEFT),
        ("GNU Lesser General Public License v2 or later (LGPLv2+)", Verdict.WEAK_COPYLEFT),
        ("MPL-2.0 AND MIT", Verdict.WEAK_COPYLEFT),
        ("GPL-3.0-only", Verdict.REFUSED),
        ("GNU General Public License v3 (GPLv3)", Verdict.REFUSED),
        ("GNU Affero General Public License v3", Verdict.REFUSED),
        ("MIT AND AGPL-3.0-or-later", Verdict.REFUSED),
        ("GPL-2.0-only OR MIT", Verdict.PERMISSIVE),
        ("CC-BY-NC-4.0", Verdict.REFUSED),
        ("Business Source License 1.1", Verdict.REFUSED),
        ("LicenseRef-Proprietary", Verdict.REFUSED),
        ("Dual License", Verdict.UNKNOWN),
        ("", Verdict.UNKNOWN),
    ],
)
def test_a_licence_means(licence: str, verdict: Verdict) -> None:
    assert a_component(licence).verdict is verdict


def test_a_package_under_terms_of_its_own_counts_only_by_its_name() -> None:
    assert a_component("LicenseRef-NVIDIA-Proprietary", "nvidia-cublas").verdict is Verdict.REVIEWED
    assert a_component("LicenseRef-NVIDIA-Proprietary", "another").verdict in refused_verdicts


def test_every_installed_package_is_listed_once_and_none_is_refused() -> None:
    components = installed()
    names = {distribution.metadata["Name"] for distribution in distributions()} - {"rollog"}
    assert {component.name for component in components} == names
    assert [component for component in components if component.verdict in refused_verdicts] == []


def test_both_files_say_the_same_and_are_the_same_the_next_time(tmp_path: Path) -> None:
    assert main(tmp_path) == 0
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(tmp_path) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    document = json.loads(first["rollog.cdx.json"])
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    references = [entry["bom-ref"] for entry in document["components"]]
    assert len(set(references)) == len(references)
    assert "pkg:pypi/confluent-kafka@" in "".join(references)
    for entry in document["components"]:
        assert f"| {entry['name']} | {entry['version']} |" in first["licences.md"].decode()


def test_a_refused_licence_stands_first() -> None:
    text = licence_list([a_component("MIT", "good"), a_component("AGPL-3.0", "bad")])
    assert text.index("| bad |") < text.index("| good |")
    assert cyclonedx([a_component("MIT", "good")])["components"][0]["licenses"] == [
        {"license": {"name": "MIT"}}
    ]
