"""What a run can be refused for, looked at before it exists: nothing is created, and no engine is loaded.

The checks run beside each other, each on a thread of its own, because one that waits for a network or a judge must not
hold up the others. What has not answered after `most_seconds` is said to be so, and left behind.
"""

from __future__ import annotations

import time
from threading import Thread
from typing import TYPE_CHECKING

from rollog.kernel.errors import ConfigError, RollogError
from rollog.run.finding import Finding
from rollog.run.preflight import agents, places, prompts, rewards, servers
from rollog.run.preflight.room import room
from rollog.settings.settings import check_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rollog.settings.settings import Settings

most_seconds = 9.0


def refuse_what_cannot_run(settings: Settings, home: Path, warn: Callable[[str], None]) -> None:
    """Raise ConfigError, naming everything that would end or stall this run; `warn` gets what would only hurt it."""
    found = list(look_at(settings, home))
    for finding in found:
        if finding.remedy is not None and not finding.is_needed:
            warn(f"{finding.what}: {finding.remedy}")
    refused = [f"{finding.what}: {finding.remedy}" for finding in found if finding.refuses]
    if len(refused) == 1:
        raise ConfigError(refused[0])
    if refused:
        raise ConfigError(f"{len(refused)} things are in the way of this run:\n  " + "\n  ".join(refused))


def look_at(settings: Settings, home: Path, *, limit_seconds: float = most_seconds) -> Iterator[Finding]:
    """All findings about one run, in the order of the questions."""
    try:
        check_files(settings)
    except ConfigError as error:
        yield Finding(what="settings", found="refused", remedy=str(error))
        return
    deadline = time.monotonic() + limit_seconds
    told = set[Finding]()
    for check in [_Check(looks) for looks in _looks(settings, home)]:
        for finding in check.findings(max(0.0, deadline - time.monotonic()), limit_seconds):
            # Two looks may meet the same row of the data.
            if finding not in told:
                yield finding
            told.add(finding)


def _looks(settings: Settings, home: Path) -> Iterator[dict[str, Callable[[], list[Finding]]]]:
    """What is looked at beside each other, and in each the looks that need the one before them."""
    store = {"weights store": lambda: places.weights_store(settings, home)}
    is_own_store = settings.weights.uri is not None
    yield {
        "state directory": lambda: places.state_directory(home),
        **({} if is_own_store else store),
        "room": lambda: room(settings, home),
    }
    if is_own_store:
        yield store
    if settings.rollout.engine == "remote":
        yield {"inference server": lambda: servers.inference(settings)}
    # One after the other: transformers, which both need, cannot be imported by two threads at once.
    yield {
        "model": lambda: prompts.model(settings),
        "data": lambda: prompts.prompts(settings),
        "agent": lambda: agents.agent(settings),
    }
    yield {
        "data": lambda: prompts.first_row(settings),
        "reward function": lambda: rewards.one_call(settings),
    }


class _Check:
    """Questions that are answered one after the other, on a thread that may be left behind."""

    def __init__(self, looks: dict[str, Callable[[], list[Finding]]]) -> None:
        self._looks = looks
        self._answers: dict[str, list[Finding]] = {}
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name=f"preflight of {', '.join(looks)}", daemon=True)
        self._thread.start()

    def findings(self, timeout_seconds: float, limit_seconds: float) -> Iterator[Finding]:
        """What was found, `limit_seconds` after all looks began. Raises what a look raised but for rollog's errors."""
        self._thread.join(timeout_seconds)
        if self._failure is not None:
            raise self._failure
        for what in self._looks:
            answers = self._answers.get(what, [_no_answer(what, limit_seconds)])
            yield from answers
            if any(answer.refuses for answer in answers):
                return  # what comes behind it would only say the same again

    def _run(self) -> None:
        try:
            for what, look in self._looks.items():
                self._answers[what] = _answer(what, look)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error


def _answer(what: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except RollogError as error:
        return [Finding(what=what, found="refused", remedy=str(error))]
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        remedy = f"{package} is not installed on this machine: pip install rollog[train]"
        return [Finding(what=what, found="not looked at", remedy=remedy)]


def _no_answer(what: str, limit_seconds: float) -> Finding:
    said = (
        f"there was no answer in {limit_seconds:g} s, as on a slow or busy machine, so the run begins without it; a "
        "mistake in it ends a role of the run later, in whose log it stands"
    )
    return Finding(what=what, found="no answer yet", remedy=said, is_needed=False)
