"""Which samples training fails on: noted on disk before each step, tried alone once their batch has failed twice.

A step that raises, or during which the process dies, ends the trainer; the next one restores the engine to the same
state. The note in the run's directory says which groups were in the steps that failed. It is no part of the log: what
becomes of samples is decided once, by the verdicts in the ledger, and a redo follows these.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rollog.kernel.errors import EngineError
from rollog.kernel.logs import get_logger
from rollog.kernel.private_directory import make_private, only_for_me

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trainer.buffer.ready_groups import ReadyGroup
    from trainer.engines.ports import TrainingEngine

log = get_logger("trainer")

most_failures = 2


@dataclass(slots=True)
class Suspicion:
    """What is known of one group: failed steps it was in, trials begun on it alone, and what came of them."""

    num_failures: int = 0
    num_trials: int = 0
    is_cleared: bool = False
    said: str | None = None
    """What training on it alone failed with."""

    @property
    def outcome(self) -> str | None:
        """What came of its trials, where it was no good: what was said, or that the process died twice in them."""
        died = self.num_trials >= most_failures and not self.is_cleared
        return self.said or ("the process died" if died else None)

    @property
    def is_tried(self) -> bool:
        """Whether nothing more is to be learnt of it."""
        return self.is_cleared or self.outcome is not None


@dataclass(slots=True)
class FailedBatches:
    """The note of one run, at `path`.

    | a group is | reached by | then |
    | --- | --- | --- |
    | unsuspected | | it is in the next batch |
    | suspect | two steps with it failed, from the same version | it is tried alone |
    | cleared | a step with it alone went well | it is trained again |
    | guilty | a step with it alone failed, or the process died twice in it | it is closed, named |

    Nobody is guilty before all suspects of a batch were tried, nor where every one of several fails.

    Example: groups 3 and 4 are in a batch, and a token of group 4 breaks the model. The trainer ends, is started again,
    and ends again. The third one finds both suspect: with group 3 alone a step goes well, with group 4 it fails. It
    ends, because trials have changed the engine; the fourth closes group 4 as untrainable and trains group 3 with
    the next one.
    """

    path: Path
    version: int = -1
    groups: dict[str, Suspicion] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> FailedBatches:
        """The note that an earlier trainer left, or an empty one. What is no note is passed over: a crash cut it."""
        note = cls(path)
        try:
            found = json.loads(path.read_text())
            note.version = int(found["version"])
            note.groups = {key: Suspicion(**values) for key, values in found["groups"].items()}
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("note of failed batches ignored", path=str(path), error=repr(error))
        return note

    def begin(self, version: int, batch: Iterable[ReadyGroup]) -> None:
        """A step to `version` begins: until `succeeded` it counts as failed."""
        if version != self.version:
            self.version, self.groups = version, {}
        for group in batch:
            self.groups.setdefault(_key(group), Suspicion()).num_failures += 1
        self._write()

    def succeeded(self) -> None:
        """Training went well: nothing is suspect any more, whatever becomes of the step."""
        self.version, self.groups = -1, {}
        self.path.unlink(missing_ok=True)

    def guilty(self, version: int, batch: Iterable[ReadyGroup]) -> dict[int, str]:
        """Of these groups those that training fails on, with what it said; none while one is still to be tried."""
        said = {group.group_id: found.outcome for group, found in self._known(version, batch)}
        failed = {group_id: outcome for group_id, outcome in said.items() if outcome is not None}
        tried = [found for _, found in self._known(version, batch) if found.is_tried]
        is_every_one = len(failed) == len(tried) > 1
        return {} if is_every_one or self._untried(version, batch) else failed

    def try_alone(
        self,
        version: int,
        batch: Sequence[ReadyGroup],
        train: Callable[[ReadyGroup], None],
        engine: TrainingEngine,
    ) -> None:
        """Train each suspect of the batch alone, from the same state each time; do nothing without one.

        Raises EngineError after a trial: the engine has changed. Where all of several fail, or none does, the samples
        are not at fault, and nobody is. An engine that a trial leaves of no use ends the trials: the next trainer goes
        on with those that are left.
        """
        suspects = self._untried(version, batch)
        if not suspects:
            return
        self._try_each(suspects, train, engine)
        num_left = len(self._untried(version, batch))
        if num_left:
            raise EngineError(
                f"a batch failed twice, and a trial has left the engine of no use; the next trainer tries {num_left} "
                "more group(s) alone"
            )
        guilty = self.guilty(version, batch)
        if not guilty:
            said = [found.outcome for _, found in self._known(version, batch) if found.outcome is not None]
            self.succeeded()
            raise EngineError(
                f"a batch failed twice, and its samples are not at fault ({(*said, 'none of them fails alone')[0]}); "
                "see what the trainer said before"
            )
        for _, found in self._known(version, batch):
            found.num_failures = found.num_failures if found.outcome is not None else 0
        self._write()
        raise EngineError(
            f"training fails on group(s) {sorted(guilty)}, tried alone; the next trainer closes them as untrainable"
        )

    def _try_each(
        self, suspects: Sequence[ReadyGroup], train: Callable[[ReadyGroup], None], engine: TrainingEngine
    ) -> None:
        directory = self.path.with_name("trial")
        shutil.rmtree(directory, ignore_errors=True)
        state = directory / "state"
        make_private(state)
        try:
            engine.save_checkpoint(state)
            only_for_me(state)
            for group in suspects:
                self._try(group, train)
                try:
                    engine.load_checkpoint(state)
                except Exception as error:  # noqa: BLE001 - a GPU after an assertion says RuntimeError
                    log.warning("trials end: the engine cannot be brought back", error=str(error))
                    return
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _known(self, version: int, batch: Iterable[ReadyGroup]) -> list[tuple[ReadyGroup, Suspicion]]:
        known = self.groups if version == self.version else {}
        return [(group, known[_key(group)]) for group in batch if _key(group) in known]

    def _untried(self, version: int, batch: Iterable[ReadyGroup]) -> list[ReadyGroup]:
        """Of these groups those to be tried alone before they are trained again."""
        return [
            group
            for group, found in self._known(version, batch)
            if found.num_failures >= most_failures and not found.is_tried
        ]

    def _try(self, group: ReadyGroup, train: Callable[[ReadyGroup], None]) -> None:
        found = self.groups[_key(group)]
        found.num_trials += 1
        self._write()
        try:
            train(group)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the trial is for
            found.said = f"{type(error).__name__}: {error}"[:500]
            log.warning(
                "training fails on a group", group=group.group_id, members=_key(group), error=found.said
            )
        else:
            found.is_cleared = True
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        note = {"version": self.version, "groups": {key: asdict(found) for key, found in self.groups.items()}}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(note))
        partial.replace(self.path)


def _key(group: ReadyGroup) -> str:
    """A group by its members: another attempt makes it another one."""
    places = ",".join(f"{header.partition}.{header.offset}" for header in group.members)
    return f"{group.group_id}:{places}"
