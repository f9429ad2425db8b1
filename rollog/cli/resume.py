"""`rollog resume`: go on with a run that exists, on this machine, with changed settings where they may change."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rollog.cli.options import (
    CommonOptions,
    common_options,
    plain_option,
    recorded_run,
    workers_option,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.rules.ledger_state import LedgerState
    from rollog.run.joining import JoinedRun
    from rollog.settings.settings import Settings


@click.command()
@workers_option
@plain_option
@common_options
@recorded_run
def resume(options: CommonOptions, num_workers: int, plain: bool) -> int:
    """Go on with a run after any stop, and end when it is over.

    Starts what `rollog up` starts, on the run's log, weights and checkpoints. Nothing that was finished is made again.

    What --set and --config say otherwise than the run's settings is changed from the next step on, and recorded in
    the ledger: settings of [algorithm] and [optimizer], most of [trainer], alpha and run.num_steps. Anything else
    belongs to the run and is refused by name, but for what may differ from machine to machine: [metrics], [rollout],
    addresses and paths.
    """
    from rollog.run.conclusion import conclude, version_of  # noqa: PLC0415  # help needs no Kafka
    from rollog.run.connection import embedded_unless_named  # noqa: PLC0415
    from rollog.run.joining import join_run  # noqa: PLC0415
    from rollog.run.local_run import RoleFlags, run_directory, run_here  # noqa: PLC0415

    begin = time.monotonic()
    is_terminal = sys.stdout.isatty() and not plain
    local, wanted = _shared_out(options)
    options = replace(options, assignments=local)
    with embedded_unless_named(options.settings().broker, options.home) as kafka:
        run = join_run(options, wait_seconds=0.0)
        changes = _changes(run, options, wanted)
        if changes:
            click.echo(f"changed from the next step on: {_shown(changes)}")
        config = () if options.config is None else ("--config", str(options.config))
        outcome = run_here(
            run.settings,
            run.broker,
            kafka,
            home=options.home,
            num_workers=num_workers,
            is_terminal=is_terminal,
            flags=RoleFlags(
                common=(*config, *_flags("--set", local)),
                trainer=_flags("--amend", [f"{key}={_text(value)}" for key, value in changes.items()]),
            ),
        )
        version = version_of(run.broker, kafka)
    conclude(
        outcome.view,
        run.settings,
        run_directory(run.settings, options.home),
        kafka_version=version,
        up_seconds=time.monotonic() - begin,
    )
    return outcome.exit_status


def changes_of(
    settings: Settings, ledger: LedgerState, wanted: Mapping[str, object], *, run: str
) -> dict[str, object]:
    """Those of `wanted` that differ from what is in force, by dotted key; `settings` are the manifest's.

    Beside another algorithm.type all that is said of [algorithm]: the type brings defaults for what is left out.
    Raises ConfigError, naming every key, for what cannot change, does not fit, or comes after the end of the run.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.settings.settings import by_key, by_section  # noqa: PLC0415
    from trainer.revisions import amendable_keys, refuse_other_keys  # noqa: PLC0415

    in_force = settings.changed(**by_section(ledger.changed_settings()))
    before = by_key(in_force.to_manifest())
    different = {key for key, value in wanted.items() if before.get(key) != value}
    of_type = {key for key in wanted if key.startswith("algorithm.") and "algorithm.type" in different}
    different |= of_type
    refuse_other_keys(
        different, amendable_keys, f"cannot change: run {run} keeps it from its beginning to its end"
    )
    try:
        resolved = in_force.changed(**by_section({key: wanted[key] for key in different}))
    except ValidationError as error:
        problems = "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
        raise ConfigError(f"{_shown(wanted)}: {problems}") from error
    after = by_key(resolved.to_manifest())
    changes = {key: after[key] for key in sorted(different) if key in of_type or after[key] != before[key]}
    if changes and ledger.is_closed:
        raise ConfigError(
            f"run {run} is over: {_shown(changes)} would change nothing; name a new run with --run"
        )
    return changes


def _changes(run: JoinedRun, options: CommonOptions, wanted: dict[str, object]) -> dict[str, object]:
    """What is to change, checked against the ledger as it is now."""
    from rollog.kernel.broker.topics import RunTopics  # noqa: PLC0415
    from rollog.run.role_settings import trainer_settings  # noqa: PLC0415
    from rollog.settings.settings import Settings  # noqa: PLC0415
    from trainer.recorded.history import read_history  # noqa: PLC0415
    from trainer.revisions import new_changes, settings_at  # noqa: PLC0415

    manifest = run.manifest
    ledger = read_history(run.broker, RunTopics(manifest.prefix, manifest.run)).state
    changes = changes_of(Settings.from_manifest(manifest.config_json), ledger, wanted, run=manifest.run)
    settings = trainer_settings(run.settings, manifest, options.home)
    is_a_change = new_changes(ledger, settings_at(settings, ledger, ledger.revision), changes)
    return changes if is_a_change else {}


def _shared_out(options: CommonOptions) -> tuple[tuple[str, ...], dict[str, object]]:
    """Assignments that belong to this machine, and what file and other assignments say of the run, by dotted key."""
    from rollog.run.role_settings import belongs_to_the_run, shared_out  # noqa: PLC0415
    from rollog.settings.sources import assigned, file_layers  # noqa: PLC0415

    of_file = {} if options.config is None else file_layers(options.config).only(belongs_to_the_run).by_key()
    local, of_the_run = shared_out(options.assignments)
    return local, of_file | assigned(of_the_run)


def _flags(flag: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (flag, value))


def _shown(changes: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {_text(value)}" for key, value in changes.items())


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
