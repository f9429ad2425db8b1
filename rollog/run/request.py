"""What somebody asks for on a command line, as plain values. The options themselves are declared in `rollog.cli`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from rollog.settings.settings import Settings
    from rollog.settings.sources import Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What `--config`, `--home`, `--set`, `--run` and `--broker` say."""

    config: Path | None
    home: Path
    assignments: tuple[str, ...]
    run: str | None
    broker: str | None

    def settings(self, *, with_demo: bool = True) -> Settings:
        """All settings resolved, for a new run: defaults, file, environment, `--set`, then the flags of their own."""
        from rollog.settings.sources import load_settings  # noqa: PLC0415  # help needs no pydantic

        return load_settings(
            self.config,
            environment=os.environ,
            assignments=(*self.assignments, *self._flag_assignments()),
            with_demo=with_demo,
        )

    def local_layers(self) -> Layers:
        """What counts in a run that exists: the values of this machine, and which run is meant. Raises ConfigError."""
        from rollog.settings.local import local_layers  # noqa: PLC0415

        layers = local_layers(self.config, os.environ, self.assignments)
        layers.add_flags(self._flag_assignments())
        return layers

    def _flag_assignments(self) -> tuple[str, ...]:
        """`--run` and `--broker` as assignments to their keys."""
        from rollog.run.names import checked_name  # noqa: PLC0415

        named = () if self.run is None else (f"run.name={checked_name(self.run)}",)
        placed = () if self.broker is None else (f"broker.bootstrap_servers={self.broker}",)
        return (*named, *placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRunRequest:
    """The run that a command reads. `archive` is a file that stands in place of a broker.

    With `mirror` the broker has a mirror of the run: what stands before a dot and the names of its topics there, or
    `same-names`. `offset_map` is a file that says which original offsets its records had.
    """

    run: str | None
    archive: Path | None
    common: RunRequest
    mirror: str | None = None
    offset_map: Path | None = None

    def refuse_copies(self) -> None:
        """For what deletes or writes. Raises ConfigError for an archive or a mirror, which are only read.

        A mirror may be behind the run, and names the same weights store: what it lacks may not be deleted there.
        """
        if self.archive is not None:
            raise ConfigError(f"--archive {self.archive} is never changed: name a run on a broker")
        if self.mirror is not None:
            raise ConfigError(
                f"--mirror {self.mirror} is never changed, and its weights store is that of the run: leave out "
                "--mirror, and name the original with --broker"
            )
