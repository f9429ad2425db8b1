"""Environments in a few processes, so that nothing one of them does can stop the run.

Many episodes are played at once and none waits for another: each has a thread of its own in one of the processes.
Whatever goes wrong with one call raises EnvironmentFailed for its episode. A late one costs its episode alone: the
process gets no further ones until it has answered, and is killed when the others have left. Processes are made as they
are needed, and one that ended is replaced by the next `open`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from producers.environments.messages import declaration_of, observation_of, result_of, snapshot_of
from producers.environments.ports import Declaration
from producers.environments.process import EnvironmentLimits, EnvironmentProcess
from producers.processes.error_texts import most_error_characters
from producers.processes.hosts import started
from rollog.kernel.errors import DataError, EnvironmentFailed, EnvironmentProcessEnded, EnvironmentTimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from producers.environments.names import EnvironmentSpec
    from producers.environments.ports import Action, Observation, StepResult

_most_action_bytes = 1 << 20
_most_seed = 2**63 - 1
_closed = "the environments are closed: the worker is leaving"


@dataclass(slots=True)
class PoolCounts:
    """What became of the episodes so far.

    `cancelled` and `timed_out` are failed, too: cancelled in a call of the environment. `kills` counts processes.
    """

    opened: int = 0
    failed: int = 0
    cancelled: int = 0
    timed_out: int = 0
    kills: int = 0


class Room:
    """Places for episodes, given out in the order in which they were asked for."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    async def take(self) -> None:
        """Wait for a place. Raises EnvironmentFailed once closed."""
        if self._is_closed:
            raise EnvironmentFailed(_closed)
        if self._num_free > 0:
            self._num_free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            # It may have been given in the same turn of the loop in which the wait was cancelled.
            if place.done() and not place.cancelled() and place.exception() is None:
                self.give()
            raise

    def give(self) -> None:
        """Give a place back, to whoever has waited longest."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._num_free += 1

    def close(self) -> None:
        """Whoever waits, or asks later, gets none."""
        self._is_closed = True
        for place in self._waiting:
            if not place.done():
                place.set_exception(EnvironmentFailed(_closed))
        self._waiting.clear()


class ProcessGroup:
    """The processes of one interpreter, and the room in them."""

    def __init__(self, limits: EnvironmentLimits, python: str | None, counts: PoolCounts) -> None:
        self._limits = limits
        self._python = python
        self._counts = counts
        self.room = Room(limits.num_processes * limits.episodes_per_process)
        self.processes: list[EnvironmentProcess] = []
        self._is_closing = False
        self._ending: set[asyncio.Task[None]] = set()

    def least_busy(self) -> EnvironmentProcess:
        """A process for one more episode: an idle one, a new one, or the one with the fewest."""
        self._end_doubtful()
        trusted = [process for process in self.processes if not process.is_doubtful]
        least = min(trusted, key=lambda process: len(process.episodes), default=None)
        if least is None or (least.episodes and len(trusted) < self._limits.num_processes):
            least = EnvironmentProcess(self._limits, self._python, self._on_end)
            self.processes.append(least)
        return least

    async def close(self) -> None:
        """End all processes and wait until they are gone."""
        self._is_closing = True
        self.room.close()
        for process in list(self.processes):
            process.end(EnvironmentFailed("the worker is leaving"))
        if self._ending:
            await asyncio.wait(self._ending)

    def _end_doubtful(self) -> None:
        """Keep at most as many that may hang as there are others: the oldest are killed, whoever is still there."""
        doubtful = [process for process in self.processes if process.is_doubtful]
        for process in doubtful[: max(0, len(doubtful) - self._limits.num_processes)]:
            process.end(EnvironmentFailed("its process was killed, since calls hang in too many processes"))

    def _on_end(self, process: EnvironmentProcess) -> None:
        self.processes.remove(process)
        if process.was_killed and not self._is_closing:
            self._counts.kills += 1
        ending = asyncio.get_running_loop().create_task(process.gone(), name="environment process gone")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class EnvironmentPool:
    """Where a worker opens episodes. All methods are called on one event loop."""

    def __init__(self, limits: EnvironmentLimits | None = None) -> None:
        self.limits = limits or EnvironmentLimits()
        self.counts = PoolCounts()
        self._groups: dict[str | None, ProcessGroup] = {}
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that run now."""
        processes = [process for group in self._groups.values() for process in group.processes]
        return [process.pid for process in processes if process.pid is not None]

    async def check(self, spec: EnvironmentSpec) -> Declaration:
        """Make the environment once and close it. Raises DataError when that fails, as it would for every episode.

        A process that ends meanwhile may be another's doing: only where that happens again and again it is a failure.
        """
        try:
            episode = await started(partial(self.open, spec, 0), EnvironmentProcessEnded)
        except EnvironmentFailed as error:
            raise DataError(str(error)) from error
        await episode.close()
        return episode.declaration

    async def open(self, spec: EnvironmentSpec, seed: int) -> EpisodeHandle:
        """Make an environment for one episode, as soon as there is room for it.

        Raises DataError for an interpreter that cannot be started, EnvironmentFailed for everything else: a seed
        outside 0 to 2**63 - 1 and parameters that JSON cannot hold, too.
        """
        if not 0 <= seed <= _most_seed:
            raise EnvironmentFailed(f"seed = {seed} is not between 0 and 2**63 - 1")
        try:
            parameters = _as_json(spec.parameters)
        except ValueError as error:
            raise EnvironmentFailed(f"the parameters of {spec.environment!r}: {error}") from error
        group = self._group(spec.python)
        await group.room.take()
        if self._is_closed:  # in the very turn of the loop in which the place was given
            raise EnvironmentFailed(_closed)
        self.counts.opened += 1
        episode = EpisodeHandle(self, group, group.least_busy(), spec, seed)
        await episode.make(parameters)
        return episode

    async def close(self) -> None:
        """End all processes; calls that are open raise EnvironmentFailed. Idempotent."""
        self._is_closed = True
        await asyncio.gather(*(group.close() for group in self._groups.values()))

    def _group(self, python: str | None) -> ProcessGroup:
        if self._is_closed:
            raise EnvironmentFailed(_closed)
        if python not in self._groups:
            self._groups[python] = ProcessGroup(self.limits, python, self.counts)
        return self._groups[python]


class EpisodeHandle:
    """One episode, from the worker's side, made by `EnvironmentPool.open`.

    | state   | reached by                                                                  | what may come       |
    | ---     | ---                                                                         | ---                 |
    | open    | `open`                                                                      | `reset`, `restore`  |
    | playing | `reset`, `restore`                                                          | everything          |
    | over    | the step after which nobody acts                                            | `reset`, `restore`  |
    | failed  | EnvironmentFailed, the end of its process, a call that was cancelled        | the same error      |
    | closed  | `close`                                                                     | `close`             |

    A call that may not come raises ValueError and changes nothing.
    """

    def __init__(
        self,
        pool: EnvironmentPool,
        group: ProcessGroup,
        process: EnvironmentProcess,
        spec: EnvironmentSpec,
        seed: int,
    ) -> None:
        self._pool = pool
        self._group = group
        self._process = process
        self._spec = spec
        self.seed = seed
        self.name = secrets.token_hex(8)
        self.declaration = Declaration()
        self.num_turns = 0
        self._to_act: tuple[int, ...] = ()
        self._failure: EnvironmentFailed | None = None
        self._is_calling = False
        self._is_in_process = False
        self._is_closed = False
        process.episodes[self.name] = self

    async def make(self, parameters: Mapping[str, Any]) -> None:
        """Have the environment made in its process; called once, by the pool."""
        try:
            await self._process.started()
        except BaseException as error:
            self._fail(error if isinstance(error, EnvironmentFailed) else EnvironmentFailed(str(error)))
            raise
        self._is_in_process = True
        answer = await self._call(
            "open",
            self._pool.limits.reset_timeout_seconds,
            environment=self._spec.environment,
            parameters=parameters,
        )
        with self._failing_on_bad_values():
            self.declaration = declaration_of(answer.get("declaration"))

    async def reset(self) -> Observation:
        """Begin the episode, or begin it anew, from its seed. Raises EnvironmentFailed."""
        answer = await self._call("reset", self._pool.limits.reset_timeout_seconds, seed=self.seed)
        self.num_turns = 0
        return self._began(answer)

    async def step(self, action: Action) -> StepResult:
        """Hand on what the seats that are to act say: a str where one is, else a mapping of seat to str.

        Raises EnvironmentFailed, for more than 1 MiB, too; ValueError after the end or for other seats.
        """
        actions = self._actions(action)
        with self._failing_on_bad_values():
            _bound(actions)
        limits = self._pool.limits
        answer = await self._call("step", limits.step_timeout_seconds, action=actions)
        with self._failing_on_bad_values():
            result = result_of(answer.get("result"), self.declaration.num_seats)
        self.num_turns += 1
        self._to_act = result.observation.to_act
        return result

    async def snapshot(self) -> dict[str, Any]:
        """What `restore` goes on from, a JSON object. Raises EnvironmentFailed where the environment has none."""
        answer = await self._call("snapshot", self._pool.limits.reset_timeout_seconds)
        with self._failing_on_bad_values():
            return snapshot_of(answer.get("snapshot"))

    async def restore(self, snapshot: Mapping[str, Any]) -> Observation:
        """Go on from a snapshot, in place of `reset`; gives the observation that came last before it."""
        whole = snapshot_of(_as_json(snapshot))
        answer = await self._call("restore", self._pool.limits.reset_timeout_seconds, snapshot=whole)
        self.num_turns = whole["num_turns"]
        return self._began(answer)

    async def close(self) -> None:
        """Have the environment closed, which is not waited for: a call under way may take until its time-out.

        The time of closing begins when that call is answered.
        """
        if not self._is_closed:
            self._is_closed = True
            self._leave()

    def lose_process(self, error: EnvironmentFailed) -> None:
        """The process has ended, or goes on without the episode."""
        self._left()
        if not self._is_closed:
            self._failed(error)

    def _began(self, answer: Mapping[str, Any]) -> Observation:
        with self._failing_on_bad_values():
            observation = observation_of(answer.get("observation"), self.declaration.num_seats)
            if observation.is_over:
                raise ValueError("the first observation lets nobody act: to_act is empty")
        self._to_act = observation.to_act
        return observation

    def _actions(self, action: Action) -> dict[str, str]:
        if self._is_closed or self._failure is not None:
            return {}
        if not self._to_act:
            raise ValueError(
                "step after the end, or before reset: nobody is to act; reset it, or open another"
            )
        actions = {self._to_act[0]: action} if isinstance(action, str) else dict(action)
        if set(actions) != set(self._to_act):
            raise ValueError(
                f"actions came for seats {sorted(actions)}; those to act are {sorted(self._to_act)}"
            )
        return {str(seat): text for seat, text in actions.items()}

    async def _call(self, operation: str, timeout_seconds: float, **fields: Any) -> dict[str, Any]:
        if self._is_closed:
            raise ValueError(f"{operation} of an episode that is closed")
        if self._failure is not None:
            raise self._failure
        if self._is_calling:
            raise ValueError(f"{operation} while another call of the episode is under way")
        self._is_calling = True
        try:
            answer = await self._process.call(self.name, operation, timeout_seconds, **fields)
        except EnvironmentProcessEnded as error:
            raise EnvironmentProcessEnded(self._named(error)) from error
        except EnvironmentTimedOut as error:
            self._pool.counts.timed_out += 1
            raise EnvironmentTimedOut(self._named(error)) from error
        except EnvironmentFailed as error:
            raise EnvironmentFailed(self._named(error)) from error
        except asyncio.CancelledError:
            # What it will answer, and so where the episode stands, nobody will know.
            self._pool.counts.cancelled += 1
            self._fail(EnvironmentFailed("a call of the episode was cancelled"))
            raise
        finally:
            self._is_calling = False
        if "error" in answer:
            failure = EnvironmentFailed(self._named(answer["error"]))
            self._fail(failure)
            raise failure
        return answer

    @contextmanager
    def _failing_on_bad_values(self) -> Iterator[None]:
        """Values that are none of the port's, the policy's or the process's, fail the episode."""
        try:
            yield
        except ValueError as error:
            failure = EnvironmentFailed(self._named(error))
            self._fail(failure)
            raise failure from error

    def _named(self, error: object) -> str:
        text = str(error)[:most_error_characters]
        return f"environment {self._spec.environment!r}, turn {self.num_turns}: {text}"

    def _fail(self, error: EnvironmentFailed) -> None:
        """The episode has failed while its process goes on: it is closed there."""
        if self._failure is None and not self._is_closed:
            self._failed(error)
            self._leave()

    def _failed(self, error: EnvironmentFailed) -> None:
        if self._failure is None:
            self._failure = error
            self._pool.counts.failed += 1

    def _leave(self) -> None:
        """Close the environment in its process; the place is free when that is answered."""
        if self._process.episodes.get(self.name) is not self:
            return
        if not self._is_in_process:
            self._left()
            return
        call = self._process.send(self.name, "close", self._pool.limits.step_timeout_seconds)
        call.answer.add_done_callback(lambda _: self._left())

    def _left(self) -> None:
        if self._process.leave(self.name):
            self._group.room.give()


def _bound(actions: Mapping[str, str]) -> None:
    """Raises ValueError for actions that together take too much room."""
    size = sum(len(text.encode(errors="replace")) for text in actions.values())
    if size > _most_action_bytes:
        raise ValueError(
            f"an action takes {size} bytes, more than {_most_action_bytes}; lower sampling.max_tokens"
        )


def _as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """A copy made of plain values. Raises ValueError."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{str(value)[:200]} is no JSON object: {error}") from None
    return copy
