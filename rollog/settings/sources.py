"""Where settings come from: defaults, then a TOML file, then the environment, then flags; later ones win.

Environment variables are called ROLLOG_<SECTION>__<KEY> (two underscores), flags `--set section.key=value`.
Every value is checked against its key's type at once; an error names source, key, value and remedy.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from rollog.kernel.addresses import names_secret, public_address, public_value
from rollog.kernel.errors import ConfigError
from rollog.settings.section import Scope, SecretPart, scope_of, secret_part_of
from rollog.settings.settings import Settings, section_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from rollog.settings.registry import RegistryConfig
    from rollog.settings.security import SecurityConfig

KeyPath = tuple[str, ...]

_environment_prefix = "ROLLOG_"
_section_and_key = 2


@dataclass
class Layers:
    """Values of all sources so far, and where each came from."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def add_file(self, text: str, name: str) -> None:
        """Put the keys of a TOML document over what is there."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{name} is not valid TOML: {error}") from error
        for section, keys in document.items():
            if not isinstance(keys, dict):
                raise ConfigError(f"{name}: {section} stands outside of a section; put it under [section]")
            for key, value in keys.items():
                self.put((section, key), value, name)

    def add_config(self, config: Path) -> None:
        """Put the keys of a TOML file over what is there. Raises ConfigError where it cannot be read."""
        self.add_file(_read(config), str(config))

    def add_mapping(self, sections: Mapping[str, object], name: str) -> None:
        """Put `{"section": {"key": value}}` over what is there. Raises ConfigError for unknown keys."""
        for path, value in key_paths(sections, name).items():
            self.put(path, value, name)

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Put ROLLOG_<SECTION>__<KEY> variables over what is there."""
        for name in sorted(environment):
            if not name.startswith(_environment_prefix) or "__" not in name:
                continue
            path = tuple(name.removeprefix(_environment_prefix).lower().split("__"))
            if not all(path):
                raise ConfigError(f"environment variable {name} is not of the form ROLLOG_SECTION__KEY")
            self.put_text(path, environment[name], f"environment variable {name}")

    def add_flags(self, assignments: Iterable[str]) -> None:
        """Put `section.key=value` assignments over what is there."""
        for assignment in assignments:
            path, text = split_assignment(assignment)
            self.put_text(path, text, assignment_origin(path, text))

    def only(self, wanted: Callable[[KeyPath], bool]) -> Layers:
        """The values of those keys alone."""
        kept = Layers()
        for path, origin in self.origins.items():
            if wanted(path):
                kept.put(path, self._value(path), origin)
        return kept

    def by_key(self) -> dict[str, Any]:
        """All values by dotted key."""
        return {_dotted(path): self._value(path) for path in self.origins}

    def put_text(self, path: KeyPath, text: str, origin: str) -> None:
        """Put one value given as text, read as its key's type."""
        self.put(path, _typed(path, text, origin), origin)

    def put(self, path: KeyPath, value: Any, origin: str) -> None:
        """Put one value."""
        _field_of(path, origin)
        inner = self.values
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
        self.origins[path] = origin

    def _value(self, path: KeyPath) -> Any:
        value: Any = self.values
        for part in path:
            value = value[part]
        return value

    def settings(self) -> Settings:
        """The resolved settings. Raises ConfigError for what does not fit."""
        try:
            return Settings.model_validate_json(json.dumps(self.values, default=str), strict=True)
        except ValidationError as error:
            raise ConfigError("; ".join(self._problem(detail) for detail in error.errors())) from error

    def check_values(self) -> None:
        """Check each value against its own key, not values against each other. Raises ConfigError."""
        try:
            Settings.model_validate_json(json.dumps(self.values, default=str), strict=True)
        except ValidationError as error:
            own = [detail for detail in error.errors() if len(detail["loc"]) >= _section_and_key]
            if own:
                raise ConfigError("; ".join(self._problem(detail) for detail in own)) from error

    def _problem(self, detail: ErrorDetails) -> str:
        path = tuple(str(part) for part in detail["loc"])
        message = detail["msg"].removeprefix("Value error, ")
        origin = self._origin(path)
        if len(path) < _section_and_key:
            return f"{message}{f' (set by {origin})' if origin else ''}"
        return f"{_shown(path, detail['input'])} ({origin or 'default'}): {message}"

    def _origin(self, path: KeyPath) -> str:
        """The source of the longest known part of `path`, or of everything under it."""
        for length in range(len(path), 1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        under = {origin for key, origin in self.origins.items() if path and key[: len(path)] == path}
        return ", ".join(sorted(under))


def load_settings(
    config: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    with_demo: bool = True,
    sections: Mapping[str, object] | None = None,
) -> Settings:
    """Settings from all sources; without a file those of the demo are the base (unless not `with_demo`).

    `sections` stand in place of a file.
    """
    layers = Layers()
    if sections is not None:
        layers.add_mapping(sections, "the settings given")
    elif config is not None:
        layers.add_config(config)
    elif with_demo:
        layers.add_file(_demo_text(), "the demo's settings")
    layers.add_environment(environment or {})
    layers.add_flags(assignments)
    return layers.settings()


def security_config(
    given: Mapping[str, object] | None, environment: Mapping[str, str]
) -> SecurityConfig | None:
    """The table `broker.security` for a program that has no other settings: its own, then the environment's.

    Raises ConfigError.
    """
    sections = {} if given is None else {"broker": {"security": dict(given)}}
    return _only(sections, "BROKER__SECURITY", environment).broker.security


def registry_config(given: Mapping[str, object] | None, environment: Mapping[str, str]) -> RegistryConfig:
    """The section `registry` for a program that has no other settings: its own, then the environment's.

    Raises ConfigError.
    """
    return _only({"registry": given or {}}, "REGISTRY__", environment).registry


def _only(sections: Mapping[str, object], start: str, environment: Mapping[str, str]) -> Settings:
    """Settings given, and those of variables that begin so."""
    layers = Layers()
    layers.add_mapping(sections, "the settings given")
    start = f"{_environment_prefix}{start}"
    layers.add_environment({name: value for name, value in environment.items() if name.startswith(start)})
    return layers.settings()


def key_paths(sections: Mapping[str, object], name: str) -> dict[KeyPath, object]:
    """Values of `{"section": {"key": value}}` by key path. Raises ConfigError where a section is none."""
    found: dict[KeyPath, object] = {}
    for section, keys in sections.items():
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{name}: {section} is no section; give {{{section!r}: {{key: value}}}}")
        found |= {(section, str(key)): value for key, value in keys.items()}
    return found


def split_assignment(assignment: str) -> tuple[KeyPath, str]:
    """Key path and text of `section.key=value`. Raises ConfigError for anything else."""
    name, separator, text = assignment.partition("=")
    path = tuple(name.strip().split("."))
    if not separator or len(path) < _section_and_key or not all(path):
        shown = f"{name}=..." if separator else "without `=`"
        raise ConfigError(f"--set {shown} is not of the form section.key=value")
    return path, text.strip()


def assignment_origin(path: KeyPath, text: str, flag: str = "--set") -> str:
    """An assignment as the origin of its value: in full where the value may be shown, else its key."""
    return f"{flag} {_dotted(path)}={text}" if _may_be_shown(path, text) else f"{flag} {_dotted(path)}"


def assigned(assignments: Iterable[str], flag: str = "--set") -> dict[str, Any]:
    """Values of `section.key=value` assignments by dotted key. Raises ConfigError for unknown keys and wrong types."""
    layers = Layers()
    for assignment in assignments:
        path, text = split_assignment(assignment)
        layers.put_text(path, text, assignment_origin(path, text, flag))
    return layers.by_key()


def demo_settings() -> Settings:
    """Settings of the demo, before its files are prepared."""
    return load_settings()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"--config {path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from error


def _demo_text() -> str:
    return resources.files("rollog.demo").joinpath("settings.toml").read_text(encoding="utf-8")


def _field_of(path: KeyPath, origin: str) -> FieldInfo:
    """The declared field that `path` names or lies within. Raises ConfigError for unknown keys."""
    section, key = path[0], path[1]
    fields = _section_fields(section)
    if fields is None:
        raise ConfigError(_unknown(f"section [{section}]", section, Settings.model_fields, origin))
    if key not in fields:
        # Without its value: what is misspelled may have been meant to be a secret.
        raise ConfigError(_unknown(f"{section}.{key}", key, fields, origin))
    return fields[key]


def _section_fields(section: str) -> dict[str, FieldInfo] | None:
    return section_class(section).model_fields if section in Settings.model_fields else None


def _unknown(shown: str, name: str, known: Iterable[str], origin: str) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"
    return f"{shown} ({origin}) is not known; {remedy}"


_nothing = ("null", "none")


def _typed(path: KeyPath, text: str, origin: str) -> Any:
    """`text` as a value of its key's type: as it stands if that fits, else as a TOML value."""
    declared = _field_of(path, origin)
    parsed = _toml_value(text)
    if len(path) > _section_and_key:
        return text if parsed is None else parsed
    if isinstance(parsed, str):
        text = parsed
    annotation: Any = declared.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    # What is no TOML value stands for nothing only where it says so.
    for candidate in (text,) if parsed is None and text not in _nothing else (text, parsed):
        try:
            return adapter.dump_python(adapter.validate_python(candidate), mode="json")
        except ValidationError:
            continue
    message = _first_message(adapter, text if parsed is None else parsed)
    raise ConfigError(f"{_shown(path, text)} ({origin}): {message}")


def _first_message(adapter: TypeAdapter[Any], value: Any) -> str:
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    return "does not fit"


def _shown(path: KeyPath, value: Any) -> str:
    """A key and its value for a message; the key alone where the value is secret or the key unknown."""
    return f"{_dotted(path)} = {value!r}" if _may_be_shown(path, value) else _dotted(path)


def _may_be_shown(path: KeyPath, value: Any) -> bool:
    fields = _section_fields(path[0])
    if fields is None or path[1] not in fields or scope_of(fields[path[1]]) is Scope.SECRET:
        return False
    if any(names_secret(part) for part in path[_section_and_key:]):
        return False
    if isinstance(value, str):
        table = _toml_value(value)
        if table is None:
            is_table = (
                len(path) == _section_and_key and secret_part_of(fields[path[1]]) is SecretPart.NAMED_ENTRIES
            )
            return not is_table and public_address(value) == value
        return public_address(value) == value and _is_public(table)
    return _is_public(value)


def _is_public(value: Any) -> bool:
    # In lists, so that nan is itself.
    return bool([public_value(value)] == [value])


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return None


def _dotted(path: KeyPath) -> str:
    return ".".join(path)
