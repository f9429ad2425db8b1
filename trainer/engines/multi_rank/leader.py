"""The leader's side of the multi-rank RPC: the training engine of rank 0, and the other ranks behind it.

Each call of the engine goes to every follower first; each makes it on its own engine and answers when it is done. So
all ranks meet in the same collective operations in the same order, whatever rank 0 waits for in between. Samples,
ledger and weights store are rank 0's alone.

On crash: a rank that dies ends the others within seconds. Rank 0 learns it from the end of the connection, or
from what the rank still said, and raises EngineError; where it hangs in a collective operation, it ends its process.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Self, TypeVar

from rollog.kernel.errors import EngineError, RollogError, exit_status
from rollog.kernel.logs import get_logger
from trainer.engines.multi_rank.connections import Connection
from trainer.engines.multi_rank.messages import (
    RankMessage,
    batch_message,
    decode_message,
    encode_message,
    of_rank,
    settings_arguments,
)
from trainer.engines.multi_rank.ranks import join_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from rollog.kernel.processes import ChildProcess
    from rollog.kernel.versions.tensors import TensorSink
    from rollog.settings.training import TrainerConfig
    from trainer.checkpoint_files import Digests
    from trainer.engines.multi_rank.ranks import RankGroup
    from trainer.engines.ports import EngineDescription, TrainingEngine
    from trainer.right_of_way import RightOfWay
    from trainer.step.ports import StepResult, StepSettings, TrainingBatch

log = get_logger("trainer")

_tick_seconds = 0.2
_last_words_seconds = 5.0
_T = TypeVar("_T")


class Followers:
    """The other ranks as rank 0 sees them: RPC clients, one a rank. They are waited for when the first call is made.

    As a context they are let go at its end, after an error with the status that it means.
    """

    def __init__(
        self,
        group: RankGroup,
        *,
        children: Sequence[ChildProcess] = (),
        timeout_seconds: float,
        on_lost: Callable[[], None] = lambda: None,
        abandon: Callable[[], None] = lambda: os._exit(1),
        seconds_to_notice: float = 15.0,
    ) -> None:
        """`children` are those that this process started.

        `abandon` ends it where it still hangs in a call `seconds_to_notice` after a rank was lost.
        """
        self.parting_status = 0
        """With which status the others end when they are let go: what a launcher restarts them by."""
        self._group = group
        self._children = children
        self._timeout_seconds = timeout_seconds
        self._on_lost = on_lost
        self._abandon = abandon
        self._seconds_to_notice = seconds_to_notice
        self._meeting_point = group.open_meeting_point()
        self._connections: dict[int, Connection] = {}
        self._num_calls = 0
        self._is_calling = False
        self._failure: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.parting_status = exit_status(error)
        self.close()

    @property
    def has_failed(self) -> bool:
        """Whether no more calls can be made."""
        return self._failure is not None or any(
            connection.is_lost for connection in self._connections.values()
        )

    def check(self) -> None:
        """Raise EngineError where a rank is gone, or has failed before."""
        lost = [connection.peer for connection in self._connections.values() if connection.is_lost]
        if self._failure is None and lost:
            self._failure = f"{', '.join(lost)} ended unexpectedly{self._last_lines()}"
        if self._failure is not None:
            raise EngineError(self._failure)

    def call(
        self,
        name: str,
        own: Callable[[], _T],
        message_to: Callable[[int], RankMessage],
        take_answer: Callable[[RankMessage], None] = lambda _: None,
    ) -> _T:
        """Have every other rank make a call, make it here by `own`, and wait until all are done.

        Raises what `own` raises of rollog's errors, and EngineError where another rank failed or is gone.
        """
        self._connect()
        self.check()
        self._num_calls, self._is_calling = self._num_calls + 1, True
        try:
            self._send(message_to)
            result = own()
            for answer in self._take_answers(name, self._timeout_seconds):
                take_answer(answer)
        except RollogError as error:
            self._failure = self._failure or f"{name} failed: {error}"
            raise
        except Exception as error:
            self._take_answers(name, _last_words_seconds)
            self._failure = f"rank 0 failed in {name}: {type(error).__name__}: {error}"
            raise EngineError(self._failure) from error
        finally:
            self._is_calling = False
        return result

    def digests_beside(self, directory: str) -> dict[str, str]:
        """Those that the other ranks tell when they have written their parts of a checkpoint.

        For the one thread that is not the caller's. Raises EngineError where a rank could not write, is gone, fails in
        a call, or is not done so long after this one.
        """
        digests: dict[str, str] = {}
        deadline = time.monotonic() + self._timeout_seconds
        for _, connection in sorted(self._connections.items()):
            while (notice := connection.notice(_tick_seconds)) is None:
                self.check()
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"{connection.peer} has not written its part of {directory} for {self._timeout_seconds:g} s"
                    )
            message = decode_message(notice)
            if message.arguments["directory"] != directory:
                raise EngineError(
                    f"{connection.peer} wrote {message.arguments['directory']}, not {directory}"
                )
            if message.name != "done":
                raise EngineError(
                    f"{connection.peer} could not write its part of {directory}: {message.arguments['error']}"
                )
            digests.update(message.arguments["digests"])
        return digests

    def close(self) -> None:
        """Let the other ranks go with `parting_status`; where one of them failed, they see the connection end."""
        try:
            if not self.has_failed:
                self._connect()
                for connection in self._connections.values():
                    connection.expect_end()
                parting = {"status": self.parting_status}
                self._send(lambda _: RankMessage(name="end", arguments=parting))
                self._take_answers("end", _last_words_seconds)
        except EngineError as error:
            log.warning("other ranks did not end in order", error=error)
        finally:
            self._meeting_point.close()
            for connection in self._connections.values():
                connection.close()
            for child in self._children:
                _end(child)

    def _connect(self) -> None:
        deadline = time.monotonic() + join_seconds
        while self._meeting_point.missing:
            for child in self._children:
                if child.poll() is not None:
                    raise EngineError(f"a rank did not start{self._last_lines()}")
            if time.monotonic() > deadline:
                raise EngineError(
                    f"ranks {sorted(self._meeting_point.missing)} have not come within {join_seconds:g} s; "
                    "see what they say, and whether they reach this machine"
                )
            arrived = self._meeting_point.accept(_tick_seconds)
            if arrived is not None:
                rank, sock = arrived
                self._connections[rank] = Connection(sock, f"rank {rank}", self._notice_loss)
                log.info("rank joined", rank=rank, world_size=self._group.world_size)

    def _send(self, message_to: Callable[[int], RankMessage]) -> None:
        for rank, connection in sorted(self._connections.items()):
            connection.send(encode_message(message_to(rank)))

    def _take_answers(self, name: str, timeout_seconds: float) -> list[RankMessage]:
        """Wait until every rank has answered. Raises EngineError for the first that failed, else one that is gone."""
        answers: list[RankMessage] = []
        silent: list[str] = []
        failed: list[str] = []
        for _, connection in sorted(self._connections.items()):
            try:
                answer = decode_message(connection.receive(timeout_seconds))
            except EngineError as error:
                silent.append(f"in {name}: {error}")
                timeout_seconds = min(timeout_seconds, _last_words_seconds)
                continue
            answers.append(answer)
            if answer.name != "done":
                failed.append(f"{connection.peer} failed in {name}: {answer.arguments['error']}")
        if failed or silent:
            self._failure = (failed or silent)[0] + ("" if failed else self._last_lines())
            raise EngineError(self._failure)
        return answers

    def _notice_loss(self) -> None:
        """Called by a reader's thread: a step under way fails by itself, unless it hangs."""
        self._on_lost()
        call = self._num_calls
        if self._is_calling:
            timer = threading.Timer(self._seconds_to_notice, self._abandon_if_in, [call])
            timer.daemon = True
            timer.start()

    def _abandon_if_in(self, call: int) -> None:
        if self._is_calling and self._num_calls == call:
            log.error("another rank is gone and this one hangs", rank=0)
            self._abandon()

    def _last_lines(self) -> str:
        """The end of the logs of the ranks that ended here."""
        ended = [child for child in self._children if child.poll() is not None]
        return "".join(
            f"; the end of {child.log_path}:\n" + "\n".join(f"    {line}" for line in child.last_lines())
            for child in ended
        )


class MultiRankEngine:
    """The engine of a trainer on rank 0: all ranks make each call; see `trainer.engines.ports.TrainingEngine`."""

    def __init__(
        self,
        engine: TrainingEngine,
        followers: Followers,
        *,
        settings: StepSettings,
        trainer: TrainerConfig,
        temperature: float,
        dtype: str,
    ) -> None:
        """The keywords are those that `engine` was made with: the other ranks make theirs with the same."""
        self._engine = engine
        self._followers = followers
        self._made_with = {
            "settings": settings_arguments(settings),
            "trainer": trainer.model_dump(mode="json"),
            "temperature": temperature,
            "dtype": dtype,
        }
        self._is_started = False

    @property
    def way(self) -> RightOfWay:
        """Of this rank. Others have theirs: they give way to their own copies, and not to a version that is awaited."""
        return self._engine.way

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """Build model and optimizer on every rank; paths are the same for all."""
        if not self._is_started:
            self._call("create", lambda: None, **self._made_with)
        self._is_started = True
        self._call(
            "start",
            lambda: self._engine.start(model_path, weights_path),
            model_path=model_path,
            weights_path=None if weights_path is None else str(weights_path),
        )

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """One optimizer step per minibatch, each rank with the micro-batches that the plan gives it."""
        return self._followers.call(
            "train_step",
            lambda: self._engine.train_step(batch),
            lambda rank: batch_message("train_step", of_rank(batch, rank)),
        )

    def change_settings(self, settings: StepSettings) -> None:
        """Put the new settings into every rank's engine."""
        self._call(
            "change_settings",
            lambda: self._engine.change_settings(settings),
            **settings_arguments(settings),
        )

    def export_weights(self, sink: TensorSink | None) -> None:
        """Hand all weights over, each gathered from the ranks where they are shared out. Rank 0 alone has the sink."""
        self._call("export_weights", lambda: self._engine.export_weights(sink))

    def sequence_logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Have every rank compute them, which the ranks that share out the weights need each other for."""
        return self._call(
            "sequence_logprobs",
            lambda: self._engine.sequence_logprobs(token_ids),
            token_ids=list(token_ids),
        )

    def save_checkpoint(self, directory: Path) -> Digests:
        """Have every rank write its part; returns when all have."""
        digests: dict[str, str] = {}
        own = self._followers.call(
            "save_checkpoint",
            lambda: self._engine.save_checkpoint(directory),
            lambda _: RankMessage(name="save_checkpoint", arguments={"directory": str(directory)}),
            lambda answer: digests.update(answer.arguments["digests"]),
        )
        return {**digests, **own}

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        """Have every rank copy its part; the others write theirs at once, and are waited for behind this one's."""
        write = self._call(
            "begin_checkpoint", lambda: self._engine.begin_checkpoint(directory), directory=str(directory)
        )
        return lambda: {**write(), **self._followers.digests_beside(str(directory))}

    def load_checkpoint(self, directory: Path) -> None:
        """Have every rank load its part."""
        self._call(
            "load_checkpoint", lambda: self._engine.load_checkpoint(directory), directory=str(directory)
        )

    def describe(self) -> EngineDescription:
        """Rank 0's engine, which knows how many there are."""
        return self._engine.describe()

    def close(self) -> None:
        """Free the models of all ranks. Followers stay and wait for calls. Idempotent."""
        try:
            if self._is_started and not self._followers.has_failed:
                self._call("close", self._engine.close)
        finally:
            self._is_started = False
            self._engine.close()

    def _call(self, name: str, own: Callable[[], _T], **arguments: object) -> _T:
        return self._followers.call(name, own, lambda _: RankMessage(name=name, arguments=arguments))


def _end(child: ChildProcess) -> None:
    """Give a child that was let go the time to leave, then end it."""
    deadline = time.monotonic() + _last_words_seconds
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
