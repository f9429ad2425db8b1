"""Who gets which rights: principals as somebody names them, and the rights of their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollog.kernel.broker.acls import Grant, parse_principal
from rollog.kernel.broker.rights import Role, rights_of_role, rights_under_prefix, roles_of_one_run
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError
from rollog.run.names import is_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.settings.settings import Settings


def grants_of_run(principals: Sequence[str], settings: Settings) -> list[Grant]:
    """What each `ROLE=TYPE:NAME` gets in the run of these settings. Raises ConfigError for anything else."""
    topics = RunTopics(settings.run.prefix, settings.run_name)
    return [
        Grant(
            role=role,
            principal=principal,
            rights=rights_of_role(role, topics, settings.optional_topics),
        )
        for role, principal in map(_named, principals)
    ]


def grants_under_prefix(principals: Sequence[str], prefix: str) -> list[Grant]:
    """What each `ROLE=TYPE:NAME` gets in all runs under `prefix`.

    Raises ConfigError for anything else, and for a role whose rights are different in each run.
    """
    if not is_name(prefix):
        raise ConfigError(f"prefix {prefix!r} is malformed; use 1 to 48 of the characters a-z, 0-9 and -")
    named = [_named(text) for text in principals]
    for role, _ in named:
        if role in roles_of_one_run:
            raise ConfigError(
                f"{role} has rights on some topics of a run and not on others, which no ACL can say of all runs at "
                "once: name the run with --run, or use role up, which has them all"
            )
    return [
        Grant(role=role, principal=principal, rights=rights_under_prefix(role, prefix))
        for role, principal in named
    ]


def _named(text: str) -> tuple[Role, str]:
    name, separator, principal = text.partition("=")
    if not separator or name not in list(Role):
        raise ConfigError(
            f"--principal {text!r}: write ROLE=TYPE:NAME, as in trainer=User:rollog-trainer; ROLE is one of "
            f"{', '.join(Role)}"
        )
    return Role(name), parse_principal(principal)
