"""Which subjects of a schema registry belong to one run, so that deleting it takes nothing from another.

| the run | its subjects |
| --- | --- |
| has no registry | none |
| names subjects after records (`registry.subjects = "record"`) | none: all runs share them |
| names them after topics, and this machine names the registry | those that are there |
| the same, and no registry is named, or it does not answer | not known; they stay |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError, RegistryRefused, RegistryUnreachable
from rollog.run.framing import subjects_of_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.kernel.registry.client import RegistryClient
    from rollog.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSubjects:
    """The subjects of one run that can be deleted with it, and why others stay."""

    run: str
    client: RegistryClient | None = None
    names: tuple[str, ...] = ()
    stay: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> OwnSubjects:
        """Look at what there is. Raises ConfigError for settings of a registry that do not fit together."""
        run = settings.run_name
        if not settings.has_registry:
            return cls(run=run)
        if settings.registry.subjects == "record":
            return cls(run=run, stay="its schemas stay in the registry: all runs share their subjects")
        if settings.registry.address() is None:
            return cls(run=run, stay=_not_deleted(run, "no registry is named with registry.url"))
        client = settings.registry.client(run)
        try:
            return cls(run=run, client=client, names=existing_subjects(client, settings))
        except (RegistryRefused, RegistryUnreachable) as error:
            return cls(run=run, stay=_not_deleted(run, str(error)))

    def lines(self) -> list[str]:
        """What would be deleted, for a person, and what would stay."""
        if self.client is None:
            return [] if self.stay is None else [self.stay]
        return [f"{len(self.names)} subjects in the schema registry at {self.client.url}"]

    def delete(self) -> Iterator[str]:
        """Delete the subjects, saying what was done and what the registry does not let go.

        Those are named, and the rest of the run can be deleted nevertheless: nothing of it needs them.
        """
        if self.client is None:
            yield from self.lines()
            return
        left: dict[str, str] = {}
        for name in self.names:
            try:
                self.client.delete(name)
            except RegistryRefused as error:
                left[name] = str(error)
            except RegistryUnreachable as error:
                left |= dict.fromkeys(self.names[self.names.index(name) :], str(error))
                break
        yield f"deleted {len(self.names) - len(left)} subjects"
        if left:
            yield f"{', '.join(left)} stay: {_not_deleted(self.run, next(iter(left.values())))}"


def existing_subjects(client: RegistryClient, settings: Settings) -> tuple[str, ...]:
    """Those of the run's subjects that are in its registry. Raises RegistryRefused, RegistryUnreachable.

    Raises ConfigError where all runs share them.
    """
    if settings.registry.subjects == "record":
        raise ConfigError(
            'registry.subjects = "record": these subjects are named after records and shared by all runs; delete them '
            "in the registry itself, once no run needs them"
        )
    own = {subject.name for subject in subjects_of_run(settings)}
    start = f"{settings.run.prefix}.{settings.run_name}."
    return tuple(sorted(own.intersection(client.subjects(start))))


def _not_deleted(run: str, reason: str) -> str:
    return (
        f"its subjects in the schema registry are not deleted ({reason}); afterwards `rollog topics schemas delete "
        f"--run {run}`, with the settings of the run, deletes them"
    )
