"""Plain data as YAML text for Kubernetes. Strings are written as JSON writes them, which YAML reads alike."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_kubernetes_name = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_longest_kubernetes_name = 253


def is_kubernetes_name(name: str) -> bool:
    """Whether an object of Kubernetes may be called so."""
    return len(name) <= _longest_kubernetes_name and _kubernetes_name.fullmatch(name) is not None


def yaml_documents(documents: Iterable[Mapping[str, Any]]) -> str:
    """Documents of mappings, lists, strings, numbers and truth values, each behind `---`."""
    return "".join("---\n" + "".join(f"{line}\n" for line in _mapping(document)) for document in documents)


def _mapping(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        name = key if key.isidentifier() else json.dumps(key)
        yield from _entry(f"{name}:", value)


def _sequence(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, dict) and value:
            first, *others = _mapping(value)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
        else:
            yield from _entry("-", value)


def _entry(start: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield start
        for line in _mapping(value) if isinstance(value, dict) else _sequence(value):
            yield f"  {line}"
    else:
        yield f"{start} {json.dumps(value)}"
