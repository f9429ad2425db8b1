"""The reference of rights: what each role may do on a cluster, as the code declares it.

    python -m rollog.settings.rights_reference > docs/reference/rights.md

writes the page anew; a test compares it with the code.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import click

from rollog.kernel.broker.rights import Resource, Role, rights_of_role, rights_under_prefix, roles_of_one_run
from rollog.kernel.broker.topics import OptionalTopic, RunTopics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rollog.kernel.broker.rights import Right

_introduction = """\
# Rights

This page is written by `python -m rollog.settings.rights_reference > docs/reference/rights.md` from
`rollog/kernel/broker/rights.py`; change that, not the page. How to grant these rights, and what each error means, is in
[least privilege](../least-privilege.md).

A name that ends in `*` is the beginning of names (a prefixed ACL). READ, WRITE and DELETE include DESCRIBE. `turns` is
there with `dispatch.durable_turns` alone, `rewards` with `reward.late`. Nothing is needed on the cluster itself.
"""

_under_prefix = """\
## For all runs under a prefix

These roles can be given rights once, for the runs to come as well: `rollog topics acls --prefix <prefix>`. The others
have rights on some topics of a run and not on others, which no ACL can say of all runs at once.
"""

_who: Mapping[Role, str] = {
    Role.DISPATCHER: "`rollog dispatch`",
    Role.WORKER: "`rollog rollout`, every worker of a run",
    Role.TRAINER: "`rollog train`; of several ranks the first one alone connects; `rollog weights prune`",
    Role.CREATOR: "`rollog topics create` and `rollog topics check`",
    Role.READER: "`rollog watch`, `audit`, `verify`, `replay`, `lineage`, `export`, `plan`, `dead-letters`, `runs`, "
    "`weights list`, `weights check`",
    Role.SCORER: "a program that scores samples of a run with `reward.late`",
    Role.ADMINISTRATOR: "`rollog topics prune`, `rollog runs delete`, `rollog dead-letters --reinject`",
    Role.UP: "`rollog up` and `rollog resume`: one principal makes the run, works for it and follows it",
}
_topics = RunTopics("<prefix>", "<run>")


def rights_reference() -> str:
    """The page as Markdown."""
    sections = [_section(role, rights_of_role(role, _topics, tuple(OptionalTopic))) for role in Role]
    wide = [
        _section(role, rights_under_prefix(role, "<prefix>"), level="###")
        for role in Role
        if role not in roles_of_one_run
    ]
    return "\n".join([_introduction, *sections, _under_prefix, *wide])


def _section(role: Role, rights: Iterable[Right], level: str = "##") -> str:
    heading = [f"{level} {role}" + (" of all runs" if level == "###" else ""), "", f"{_who[role]}.", ""]
    return "\n".join(
        [*heading, "| resource | name | operations |", "| --- | --- | --- |", *_rows(rights), ""]
    )


def _rows(rights: Iterable[Right]) -> Iterator[str]:
    operations: defaultdict[tuple[Resource, str], list[str]] = defaultdict(list)
    for right in rights:
        name = f"{right.name}*" if right.is_prefix else right.name
        operations[right.resource, name].append(right.operation)
    for (resource, name), allowed in operations.items():
        yield f"| {resource} | `{name}` | {', '.join(allowed)} |"


if __name__ == "__main__":
    click.echo(rights_reference(), nl=False)
