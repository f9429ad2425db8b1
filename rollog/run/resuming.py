"""Going on with a run under changed settings: what is asked for, and which of it is a change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollog.kernel.broker.topics import RunTopics
from rollog.run.local_run import RoleFlags
from rollog.run.role_settings import trainer_settings
from rollog.settings.changes import as_text, new_changes, resumed_changes
from rollog.settings.in_force import settings_in_force
from rollog.settings.scopes import belongs_to_the_run, shared_out
from rollog.settings.settings import Settings
from rollog.settings.sources import Layers, assigned, split_assignment
from trainer.recorded.history import read_history
from trainer.settings import settings_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.run.joining import JoinedRun
    from rollog.run.request import RunRequest
    from rollog.settings.changes import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A request to go on, taken apart: `here` has the assignments of this machine alone, `wanted` is asked of the run.

    `wanted` comes from file and assignments, by dotted key; much of it may be as it is already.
    """

    here: RunRequest
    wanted: Mapping[str, object]

    def role_flags(self, changes: Mapping[str, object]) -> RoleFlags:
        """Flags that the roles are started with: what is local for all, the changes for the trainer."""
        config = () if self.here.config is None else ("--config", str(self.here.config))
        return RoleFlags(
            common=(*config, *_flags("--set", _for_command_lines(self.here.assignments))),
            trainer=_flags("--amend", [f"{key}={as_text(value)}" for key, value in changes.items()]),
        )


def resumption(request: RunRequest) -> Resumption:
    """What a request says about this machine, and what about the run. Raises ConfigError for what fits no key."""
    local, of_the_run = shared_out(request.assignments)
    here = replace(request, assignments=local)
    here.settings(with_demo=False)
    of_file = Layers()
    if request.config is not None:
        of_file.add_config(request.config)
    return Resumption(here=here, wanted=of_file.only(belongs_to_the_run).by_key() | assigned(of_the_run))


def changes_of(run: JoinedRun, resumed: Resumption) -> Changes:
    """What is to change, checked against the ledger as it is now. Raises ConfigError, naming every key."""
    manifest = run.manifest
    ledger = read_history(run.broker, RunTopics(manifest.prefix, manifest.run)).state
    changes = resumed_changes(
        settings_in_force(Settings.from_manifest(manifest.config_json), ledger.changed_settings()),
        resumed.wanted,
        run=manifest.run,
        is_over=ledger.is_closed,
    )
    settings = trainer_settings(run.settings, manifest, resumed.here.home)
    in_force = settings_at(settings, ledger, ledger.revision).amendable
    return changes if new_changes(in_force, changes, version=ledger.version) else {}


def _for_command_lines(assignments: Sequence[str]) -> list[str]:
    """Without what says how to connect, which roles get by their environment."""
    return [each for each in assignments if split_assignment(each)[0][:2] != ("broker", "security")]


def _flags(flag: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (flag, value))
