"""Samples that training fails on: noted on disk before each step, tried alone once their batch has failed twice.

A step that raises, or during which the process dies, ends the trainer; the next one restores the engine to the same
state. The note in the run's directory says which groups were in the steps that failed. It is no part of the log: what
becomes of samples is decided once, by the verdicts in the ledger, and a redo follows these.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rollog.kernel.errors import EngineError
from rollog.kernel.logs import get_logger
from rollog.kernel.private_directory import make_private, only_for_me
from trainer.suspects import CloseGuilty, Move, NotAtFault, Suspects, Suspicion, TryAlone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from trainer.buffer.ready_groups import ReadyGroup
    from trainer.engines.ports import TrainingEngine

log = get_logger("trainer")
_look_seconds = 0.1


@dataclass(slots=True)
class FailedBatches:
    """The note of one run, at `path`; who is suspect, and who is guilty, is `Suspects`' to say.

    Example: groups 3 and 4 are in a batch, and a token of group 4 breaks the model. The trainer ends, is started again,
    and ends again. The third one finds both suspect: with group 3 alone a step goes well, with group 4 it fails. It
    ends, because trials have changed the engine; the fourth closes group 4 as untrainable and trains group 3 with
    the next one.
    """

    path: Path
    version: int = -1
    suspects: Suspects = field(default_factory=Suspects)
    careful_until: int = -1
    """The version that an earlier trainer failed at. Up to it a step is committed before the next one is trained:
    otherwise one that kills the process would undo, each time, the one before it, and the note with it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _take_back: Callable[[], None] | None = None
    """Undoes what stands in the note of the step or trial that is under way."""
    _is_stopping: bool = False

    @classmethod
    def read(cls, path: Path) -> FailedBatches:
        """The note that an earlier trainer left, or an empty one. What is no note is passed over: a crash cut it."""
        note = cls(path)
        try:
            found = json.loads(path.read_text())
            groups = {key: Suspicion(**values) for key, values in found["groups"].items()}
            note.version, note.suspects = int(found["version"]), Suspects(groups)
            note.careful_until = note.version
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("note of failed batches ignored", path=str(path), error=repr(error))
        return note

    @contextlib.contextmanager
    def until_stopped(self, stop: threading.Event) -> Iterator[None]:
        """In the body, what is under way when `stop` is set does not count: who stops a trainer may kill it."""
        ended = threading.Event()

        def watch() -> None:
            while not stop.wait(_look_seconds):
                if ended.is_set():
                    return
            self._stop()

        watcher = threading.Thread(target=watch, name="failed-batches", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def begin(self, version: int, batch: Iterable[ReadyGroup]) -> None:
        """A step to `version` begins: until `succeeded` it counts as failed."""
        keys = [_key(group) for group in batch]
        with self._lock:
            if version != self.version:
                self.version, self.suspects = version, Suspects()
            self.suspects.begin(keys)
            self._take_back = partial(self.suspects.take_back, keys)
            self._write()

    def succeeded(self) -> None:
        """Training went well: nothing is suspect any more, whatever becomes of the step."""
        with self._lock:
            self._take_back = None
            self.version, self.suspects = -1, Suspects()
            self.path.unlink(missing_ok=True)

    def untrainable(
        self,
        version: int,
        batch: Sequence[ReadyGroup],
        ready: Sequence[ReadyGroup],
        train: Callable[[ReadyGroup], None],
        engine: TrainingEngine,
    ) -> dict[int, str]:
        """Of the groups that are `ready` those training fails on, with what it said, before `batch` is trained.

        Raises EngineError after trials, because they change the engine, and where samples are not at fault. An engine
        that a trial leaves of no use ends the trials, and so does a stop: the next trainer goes on with those left.
        """
        if version != self.version:
            return {}
        groups = {_key(group): group for group in ready}
        move = self._next_move(batch, groups)
        if isinstance(move, TryAlone):
            raise EngineError(_end_of_trials(self._try_all(move, batch, groups, train, engine), groups))
        if isinstance(move, NotAtFault):
            raise EngineError(_end_of_trials(move, groups))
        said = move.said if isinstance(move, CloseGuilty) else {}
        return {groups[key].group_id: words for key, words in said.items() if key in groups}

    def _next_move(self, batch: Iterable[ReadyGroup], ready: Iterable[str]) -> Move:
        move = self.suspects.next_move([_key(group) for group in batch], list(ready))
        if isinstance(move, CloseGuilty | NotAtFault):
            self._write()
        return move

    def _try_all(
        self,
        move: Move,
        batch: Sequence[ReadyGroup],
        ready: dict[str, ReadyGroup],
        train: Callable[[ReadyGroup], None],
        engine: TrainingEngine,
    ) -> Move:
        """Try whoever is to be tried, while the engine can be brought back; returns what is to be done then."""
        directory = self.path.with_name("trial")
        shutil.rmtree(directory, ignore_errors=True)
        state = directory / "state"
        make_private(state)
        world_size = engine.describe().world_size
        try:
            engine.save_checkpoint(state)
            only_for_me(state)
            while isinstance(move, TryAlone):
                for key in move.keys:
                    if self._is_stopping:
                        return move
                    self._try(ready[key], train)
                    if not self._is_brought_back(engine, state, key, world_size):
                        return self._next_move(batch, ready)
                move = self._next_move(batch, ready)
            return move
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _is_brought_back(self, engine: TrainingEngine, state: Path, key: str, world_size: int) -> bool:
        try:
            engine.load_checkpoint(state)
        except Exception as error:  # noqa: BLE001 - a GPU after an assertion says RuntimeError
            log.warning("trials end: the engine cannot be brought back", error=str(error))
            if world_size > 1:
                # It may be a machine that was lost, and no doing of the samples.
                self.suspects.lost(key)
                self._write()
            return False
        return True

    def _try(self, group: ReadyGroup, train: Callable[[ReadyGroup], None]) -> None:
        key, said = _key(group), None
        with self._lock:
            self.suspects.begin_trial(key)
            self._take_back = partial(self.suspects.take_back_trial, key)
            self._write()
        try:
            train(group)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the trial is for
            said = f"{type(error).__name__}: {error}"[:500]
            log.warning("training fails on a group", group=group.group_id, members=key, error=said)
        with self._lock:
            self._take_back = None
            self.suspects.tried(key, said)
            self._write()

    def _stop(self) -> None:
        with self._lock:
            self._is_stopping = True
            if self._take_back is not None:
                self._take_back()
                self._take_back = None
                self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        groups = {key: asdict(found) for key, found in self.suspects.groups.items()}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"version": self.version, "groups": groups}))
        partial.replace(self.path)


def _end_of_trials(move: Move, groups: dict[str, ReadyGroup]) -> str:
    if isinstance(move, TryAlone):
        return (
            "a batch failed twice, and trials of its groups ended early, by a stop or because one has left the engine "
            f"of no use; the next trainer tries {len(move.keys)} more group(s) alone"
        )
    if isinstance(move, CloseGuilty):
        guilty = sorted(groups[key].group_id for key in move.said if key in groups)
        return (
            f"training fails on group(s) {guilty}, tried alone; the next trainer closes them as untrainable"
        )
    said = (move.said if isinstance(move, NotAtFault) else None) or "none of them fails alone"
    return (
        f"a batch failed twice, and its samples are not at fault ({said}); see what the trainer said before"
    )


def _key(group: ReadyGroup) -> str:
    """A group by its members: another attempt makes it another one."""
    places = ",".join(f"{header.partition}.{header.offset}" for header in group.members)
    return f"{group.group_id}:{places}"
