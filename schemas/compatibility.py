"""Whether the schemas in force fit every released one, in both directions.

Records of a release must stay readable here, and readers of a release must understand what is written here as
far as it concerns them. So fields are never removed or retyped, new ones have defaults, and enums (and unions
of records) only grow. `python -m schemas.compatibility` lists what breaks that and exits with status 1.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from schemas.catalogue import Catalogue, Definition, load_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def breaks(catalogue: Catalogue) -> list[str]:
    """One message for each incompatibility of the current schemas with a released one; empty when all fit."""
    current = {name: schema.definition for name, schema in catalogue.current.items()}
    return [
        f"release {number}: {message}"
        for number, release in catalogue.releases.items()
        for name, schema in sorted(release.items())
        for message in _record_breaks(schema.definition, current.get(name), name)
    ]


def definition_breaks(released: Definition, current: Definition) -> list[str]:
    """The incompatibilities between two definitions of one record."""
    return list(_Comparison(released, current).breaks())


def _record_breaks(released: Definition, current: Definition | None, name: str) -> list[str]:
    if current is None:
        return [f"{name}: the record is gone, but logs hold it; restore its schema"]
    return definition_breaks(released, current)


class _Comparison:
    """Walks two definitions side by side; nested types may be referred to by name after their first use."""

    def __init__(self, released: Definition, current: Definition) -> None:
        self._released = released
        self._current = current
        self._released_names = dict(_named_types(released))
        self._current_names = dict(_named_types(current))

    def breaks(self) -> Iterator[str]:
        yield from self._compare(self._released, self._current, self._released["name"])

    def _compare(self, released: Any, current: Any, place: str) -> Iterator[str]:
        old = _resolved(released, self._released_names)
        new = _resolved(current, self._current_names)
        if _label(old) != _label(new):
            yield (
                f"{place}: the type changed from {_label(old)} to {_label(new)}; "
                "keep it and add another field with a default"
            )
        elif isinstance(old, list):
            yield from self._compare_unions(old, new, place)
        elif isinstance(old, dict):
            yield from self._compare_complex(old, new, place)

    def _compare_complex(self, old: Definition, new: Definition, place: str) -> Iterator[str]:
        if old["type"] == "record":
            yield from self._compare_fields(old, new, place)
        elif old["type"] == "enum":
            for symbol in old["symbols"]:
                if symbol not in new["symbols"]:
                    yield f"{place}: the symbol {symbol} is gone, but records hold it; restore it"
        for key in ("items", "values"):
            if key in old:
                yield from self._compare(old[key], new[key], f"{place}[]")

    def _compare_fields(self, old: Definition, new: Definition, place: str) -> Iterator[str]:
        old_fields = {field["name"]: field for field in old["fields"]}
        new_fields = {field["name"]: field for field in new["fields"]}
        for name, field in old_fields.items():
            if name not in new_fields:
                yield f"{place}.{name}: the field is gone, but released readers need it; restore it"
            else:
                yield from self._compare(field["type"], new_fields[name]["type"], f"{place}.{name}")
        for name, field in new_fields.items():
            if name not in old_fields and "default" not in field:
                yield f"{place}.{name}: the new field has no default, but released records lack it; add one"

    def _compare_unions(self, old: list[Any], new: list[Any], place: str) -> Iterator[str]:
        branches = {_label(_resolved(branch, self._current_names)): branch for branch in new}
        known = set()
        for branch in old:
            label = _label(_resolved(branch, self._released_names))
            known.add(label)
            if label not in branches:
                yield f"{place}: the branch {label} is gone, but records hold it; restore it"
            else:
                yield from self._compare(branch, branches[label], place)
        for label in branches:
            if label not in known and not label.startswith("record "):
                yield f"{place}: the type gained the branch {label}; add another field with a default instead"


def _named_types(node: Any) -> Iterator[tuple[str, Definition]]:
    if isinstance(node, list):
        for member in node:
            yield from _named_types(member)
    elif isinstance(node, dict):
        if "name" in node:
            yield node["name"], node
        for key in ("type", "items", "values"):
            yield from _named_types(node.get(key))
        for field in node.get("fields", ()):
            yield from _named_types(field["type"])


def _resolved(node: Any, names: Mapping[str, Definition]) -> Any:
    return names.get(node, node) if isinstance(node, str) else node


def _label(node: Any) -> str:
    """What must not change about a type, in words; the parts of a complex one are compared apart."""
    if isinstance(node, list):
        return "a union"
    if isinstance(node, str):
        return node
    if node["type"] in {"record", "enum"}:
        return f"{node['type']} {node['name']}"
    array = f" of {node['array']}" if "array" in node else ""
    return f"{node['type']}{array}"


def main(catalogue: Catalogue | None = None) -> int:
    """List the breaks on standard error; the exit status says whether there are any."""
    found = breaks(catalogue or load_catalogue())
    sys.stderr.writelines(f"{message}\n" for message in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
