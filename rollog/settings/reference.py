"""The configuration reference: every section, key, type, default and meaning, as the models declare them.

    python -m rollog.settings.reference > docs/configuration.md

writes the page anew; a test compares it with the code.
"""

from __future__ import annotations

import json
from importlib import resources
from inspect import getdoc
from typing import TYPE_CHECKING, Any, get_args

import click

from rollog.settings.named_rewards import RewardComponent, named_rewards
from rollog.settings.scopes import declared_keys
from rollog.settings.section import Scope, scope_of
from rollog.settings.security import SecurityConfig
from rollog.settings.settings import Settings, section_class
from rollog.settings.training import AlgorithmConfig, AlgorithmType

if TYPE_CHECKING:
    from collections.abc import Mapping

Schema = dict[str, Any]

_introduction = """\
# Configuration

This page is written by `python -m rollog.settings.reference > docs/configuration.md` from the sections in
`rollog/settings/run.py`, `rollog/settings/groups.py`, `rollog/settings/generation.py` and
`rollog/settings/training.py`; change those, not the page. `rollog/settings/__init__.py` says how to add a key.

## Where a value comes from

Later sources win:

1. the default of the key, or without `--config` the demo's settings at the end of this page;
2. the TOML file given with `--config`, one table per section;
3. environment variables `ROLLOG_<SECTION>__<KEY>` (two underscores), for example `ROLLOG_FRESHNESS__ALPHA=2`;
4. `--set section.key=value`, then `--run` and `--broker`.

With `--config` the demo's settings play no part: what the file leaves out has its default. Unknown keys, values of
another type and sections that contradict each other are refused; the message names source, key, value and remedy.

`rollog up` and `rollog topics create` resolve all of this once and put the result into the run's manifest, without
the broker's address, without entries of `rollout.engine_args` that are named like secrets (password, token ...) and
without users, passwords, signatures and keys in addresses (`weights.uri`, `model.path`, `data.train` ...): a role that
needs them has them in its own settings. No message prints a value of such a key, or of a key that is not known.

## Where a key may change

Each key says so where it is declared, and its mark below repeats it:

| mark | meaning |
| --- | --- |
| none | Fixed: the run keeps it from beginning to end. |
| *Amendable.* | `rollog resume --set` changes it from the next step on, and records that in the ledger. |
| *Per machine.* | The roles of one run may differ in it. |
| *Per machine, not in the manifest.* | The same, and the manifest does not hold it. |

`rollog dispatch`, `rollog rollout`, `rollog train` and `rollog watch` take their settings from the manifest. Only the
keys marked *per machine* below may then differ, by file, environment variable or `--set`, in the order above: `--set`
of any other key is an error; other keys of a file and other environment variables are not looked at, because the file
may be the one the run was created with. `run.name` and `run.prefix` say which run is meant.

## Sections
"""

_rewards_introduction = """\
## Ready rewards

The names that `reward.function` and the `name` of an entry of `reward.components` may have, and the options of each
([what they compute](rewards.md)). `module:function` has `weight` and `label` alone. As `reward.function` a name stands
for the reward with its defaults, where no option is needed. All of it is fixed for a run.

| name | option | type | default | meaning |
| --- | --- | --- | --- | --- |
"""

_demo_introduction = """\
## The demo's settings

What `rollog up` and `rollog topics create` start from when no file is given (`rollog/demo/settings.toml`). The
model, the prompts and the reward function of the demo are filled in when the run is created.

```toml
"""

_common_options = set(RewardComponent.model_fields)

_marks: Mapping[Scope, str] = {
    Scope.FIXED: "",
    Scope.AMENDABLE: " *Amendable.*",
    Scope.PER_MACHINE: " *Per machine.*",
    Scope.SECRET: " *Per machine, not in the manifest.*",
}
_bounds: Mapping[str, str] = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
}


def configuration_reference() -> str:
    """The page as Markdown."""
    schema = Settings.model_json_schema()
    definitions: dict[str, Schema] = schema["$defs"]
    sections = [
        _section(name, definitions[_target(reference)], definitions)
        for name, reference in schema["properties"].items()
    ]
    sections.insert(list(schema["properties"]).index("broker") + 1, _security())
    demo = resources.files("rollog.demo").joinpath("settings.toml").read_text(encoding="utf-8")
    return "\n".join([_introduction, *sections, _ready_rewards(), f"{_demo_introduction}{demo}```\n"])


def algorithm_defaults() -> str:
    """The defaults of each `algorithm.type` as a Markdown table, for docs/algorithms.md."""
    shown = ("advantage", "normalize_std", "aggregation", "ratio_level")
    usual = AlgorithmConfig().model_dump()
    lines = [
        f"| `type` | {' | '.join(f'`{key}`' for key in shown)} | other than `grpo` |",
        "| --- " * 6 + "|",
    ]
    for name in get_args(AlgorithmType):
        values = AlgorithmConfig(type=name).model_dump()
        others = [
            f"`{key} = {json.dumps(value)}`"
            for key, value in values.items()
            if key not in {"type", *shown} and value != usual[key]
        ]
        cells = [name, *(json.dumps(values[key]).strip('"') for key in shown), ", ".join(others) or "-"]
        lines.append("| " + " | ".join([f"`{cells[0]}`", *cells[1:]]) + " |")
    return "\n".join(lines) + "\n"


def _section(name: str, model: Schema, definitions: Mapping[str, Schema]) -> str:
    lines = [
        f"### [{name}]",
        "",
        _section_doc(name),
        "",
        "| key | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for key, field in model["properties"].items():
        cells = (
            f"`{key}`",
            _type(field, definitions),
            _default(field),
            " ".join(str(field.get("description", "")).split()) + _mark(name, key),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _security() -> str:
    """The table `broker.security`."""
    lines = [
        "### [broker.security]",
        "",
        " ".join((getdoc(SecurityConfig) or "").split())
        + " All of it is per machine, and not in the manifest ([secured clusters](security.md)).",
        "",
        "| key | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for key, field in SecurityConfig.model_json_schema()["properties"].items():
        cells = (f"`{key}`", _type(field, {}), _default(field), " ".join(field["description"].split()))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _ready_rewards() -> str:
    common = _options("any", RewardComponent, set())
    own = [
        row for name in sorted(named_rewards) for row in _options(name, named_rewards[name], _common_options)
    ]
    return _rewards_introduction + "\n".join(common + own) + "\n"


def _options(name: str, reward: type[RewardComponent], without: set[str]) -> list[str]:
    """One row for each option that a reward has for itself."""
    schema = reward.model_json_schema()
    rows = []
    for key, field in schema["properties"].items():
        if key in without or key == "name":
            continue
        default = "needed" if key in schema.get("required", ()) else _default(field)
        meaning = " ".join(str(field.get("description", "")).split())
        cells = (f"`{name}`" if without else name, f"`{key}`", _type(field, {}), default, meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _section_doc(name: str) -> str:
    return " ".join((getdoc(section_class(name)) or "").split())


def _mark(section: str, key: str) -> str:
    return _marks[scope_of(declared_keys()[f"{section}.{key}"])]


def _target(reference: Schema) -> str:
    return str(reference["$ref"]).rsplit("/", 1)[-1]


def _type(field: Schema, definitions: Mapping[str, Schema]) -> str:
    """A type in words, with its bounds."""
    if "$ref" in field:
        return _type(definitions[_target(field)], definitions)
    if "anyOf" in field:
        parts = [part for part in field["anyOf"] if part.get("type") != "null"]
        return " or ".join(_type(part, definitions) for part in parts)
    if "oneOf" in field:
        return "table"
    if not field:
        return "anything"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{choice}`" for choice in field.get("enum", [field.get("const")]))
    bounds = [f"{sign} {field[name]}" for name, sign in _bounds.items() if name in field]
    if "pattern" in field:
        bounds.append(f"matching `{field['pattern']}`")
    return " ".join([_kind(field, definitions), ", ".join(bounds)]).strip()


def _kind(field: Schema, definitions: Mapping[str, Schema]) -> str:
    match field["type"]:
        case "array" if "prefixItems" not in field:
            return f"list of {_kind_of_entry(field['items'], definitions)}"
        case "array":
            return f"list of {len(field['prefixItems'])} {_type(field['prefixItems'][0], definitions)}s"
        case "object" if "properties" in field or field["additionalProperties"] is True:
            return "table"
        case "object":
            return f"table of {_type(field['additionalProperties'], definitions)}"
        case kind:
            return str(kind)


def _kind_of_entry(field: Schema, definitions: Mapping[str, Schema]) -> str:
    """An entry of a list: `[integer, number]` where it is itself a list of given length."""
    if "prefixItems" not in field:
        return _type(field, definitions)
    return f"[{', '.join(_type(part, definitions) for part in field['prefixItems'])}]"


def _default(field: Schema) -> str:
    value = field.get("default", {})
    return "none" if value is None else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    click.echo(configuration_reference(), nl=False)
