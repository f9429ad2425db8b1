"""The work directory as it is between two actions: a mapping of path to content, held outside of any sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath

Files = Mapping[str, bytes]
"""By paths relative to the work directory."""

most_files = 200
most_bytes = 262_144
"""Paths and contents of all files together."""

most_path_characters = 200


class ActionRefused(Exception):
    """What an action asks for cannot be done; the agent is told why."""


def with_file(files: Files, path: str, content: bytes) -> Files:
    """The files with one more, or with another content of one. Raises ActionRefused."""
    name = _checked(path)
    for other in files:
        if other.startswith(f"{name}/") or name.startswith(f"{other}/"):
            raise ActionRefused(f"{path} cannot be a file: {other} is there")
    changed = {**files, name: content}
    if not fits(changed):
        raise ActionRefused(f"the work directory takes {most_files} files and {most_bytes} bytes at most")
    return changed


def with_replaced(files: Files, path: str, old: str, new: str) -> Files:
    """The files with the one place of a text in one of them replaced. Raises ActionRefused."""
    name = _checked(path)
    if name not in files:
        raise ActionRefused(f"there is no file {path}")
    count = files[name].count(old.encode()) if old else 0
    if count != 1:
        raise ActionRefused(f"the text to replace is in {path} {count} times; give one that is there once")
    return with_file(files, name, files[name].replace(old.encode(), new.encode()))


def fits(files: Files) -> bool:
    """Whether they are within the bounds."""
    size = sum(len(path) + len(content) for path, content in files.items())
    return len(files) <= most_files and size <= most_bytes


def as_text(files: Files) -> str:
    """The files as a JSON object of ASCII; bytes that are no UTF-8 come back as they were."""
    return json.dumps({path: content.decode(errors="surrogateescape") for path, content in files.items()})


def from_text(text: str | bytes) -> dict[str, bytes]:
    """The files of such a text. Raises ValueError for another, and for a path that leads elsewhere."""
    value = json.loads(text)
    if not isinstance(value, dict) or not all(isinstance(content, str) for content in value.values()):
        raise ValueError("files are a JSON object of texts")
    files = {}
    for path, content in value.items():
        try:
            files[_checked(path)] = content.encode(errors="surrogateescape")
        except ActionRefused as error:
            raise ValueError(str(error)) from None
    return files


def _checked(path: str) -> str:
    """The path as it is written. Raises ActionRefused for one that leads out of the work directory."""
    parts = PurePosixPath(path)
    is_inside = parts.parts and not parts.is_absolute() and ".." not in parts.parts
    if not is_inside or not path.isprintable() or len(path) > most_path_characters:
        raise ActionRefused(f"{path[:80]!r} is no path below the work directory; give a relative one")
    return str(parts)
