"""A small repository with a planted defect: the agent looks, tests and edits by text, tests that it never sees judge.

Needs a sandbox (extra `sandbox`). The reward is 1 for a submitted repository whose functions give what the originals
give for arguments drawn from the seed, else 0. The sandbox gets these arguments, when it is too late to look at them,
and only says values; expected values are compared with them in this process.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING

from producers.environments.ports import Declaration, Observation, StepResult
from producers.environments.repair.actions import ReplaceText, RunCommand, Submit, WriteFile, action_of
from producers.environments.repair.draws import draws
from producers.environments.repair.files import (
    ActionRefused,
    as_text,
    from_text,
    with_file,
    with_replaced,
)
from producers.environments.repair.tasks import RepairTask, task_of
from producers.environments.repair.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.environments.repair.actions import Action
    from producers.environments.repair.files import Files
    from producers.environments.repair.workbench import CommandOutcome

_instructions = """The repository in your work directory has a defect: one operator, number or name in one of its \
modules is wrong. Repair it. Some of its tests fail because of it; other tests, which you do not see, judge what you \
submit.

Give one action each turn, as one fenced block:

```sh
python3 -m unittest
```
runs a shell command of at most {seconds:g} seconds. Files stay, processes do not.

```replace toolbox/module.py
    old lines, which are there once
=====
    new lines
```
changes a file.

```write notes.txt
all that the file holds
```
writes one.

```submit
```
ends the episode.

Files: {files}"""


class RepositoryRepair:
    """Repositories of `num_modules` modules out of `modules` (all, left out), one of them with a defect.

    A command takes at most `command_seconds`; of what it says the agent sees `output_characters`, begin and end.
    """

    def __init__(
        self,
        *,
        modules: Sequence[str] | None = None,
        num_modules: int = 3,
        max_turns: int = 20,
        command_seconds: float = 10.0,
        output_characters: int = 4_000,
    ) -> None:
        self._modules = tuple(sorted(draws if modules is None else set(modules)))
        _check(self._modules, num_modules, command_seconds, output_characters)
        self._num_modules = num_modules
        self._command_seconds = command_seconds
        self._workbench = Workbench(command_seconds)
        self._workbench.start()
        self._output_characters = output_characters
        self.declaration = Declaration("snapshot", max_turns=max_turns)
        self._seed = 0
        self._task: RepairTask | None = None
        self._files: Files = {}
        self._seen = ""

    def reset(self, seed: int) -> Observation:
        """Plant the seed's defect."""
        self._begin(seed)
        names = ", ".join(sorted(self._files))
        self._seen = _instructions.format(seconds=self._command_seconds, files=names)
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Do what the turn says; what cannot be done is answered and costs the turn."""
        try:
            wanted = action_of(action)
            if isinstance(wanted, Submit):
                return self._judged()
            self._seen = self._done(wanted)
        except ActionRefused as refusal:
            self._seen = f"Nothing was done: {refusal}."
        return StepResult.of(self._seen)

    def snapshot(self) -> str:
        """Seed, files and what was seen last: all that an episode is made of."""
        return json.dumps({"seed": self._seed, "files": as_text(self._files), "seen": self._seen})

    def restore(self, snapshot: str) -> Observation:
        """Go on with these files."""
        state = json.loads(snapshot)
        self._begin(int(state["seed"]))
        self._files = from_text(state["files"])
        self._seen = str(state["seen"])
        return self._observation()

    def close(self) -> None:
        """Nothing is held between two calls."""

    def _begin(self, seed: int) -> None:
        self._seed = seed
        self._task = _task(seed, self._modules, self._num_modules, self._command_seconds)
        self._files = self._task.files

    def _observation(self) -> Observation:
        assert self._task is not None
        return Observation.of(self._seen, module=self._task.module, line=self._task.line_number)

    def _done(self, action: Action) -> str:
        match action:
            case WriteFile(path, content):
                self._files = with_file(self._files, path, content.encode())
                return f"{path} is written."
            case ReplaceText(path, old, new):
                self._files = with_replaced(self._files, path, old, new)
                return f"{path} is changed."
            case RunCommand(command):
                outcome = self._workbench.run(self._files, command)
                if outcome.files is not None:
                    self._files = outcome.files
                return _told(outcome, self._output_characters)
        raise AssertionError(action)

    def _judged(self) -> StepResult:
        assert self._task is not None
        hidden = self._task.hidden
        returned = self._workbench.returned(self._files, [case.call for case in hidden])
        passed = sum(
            each.agrees(case.expected)
            for case, each in zip(hidden, returned or [], strict=returned is not None)
        )
        return StepResult.of(
            "submitted", reward=float(passed == len(hidden)), done=True, passed=passed, hidden=len(hidden)
        )


@lru_cache(maxsize=64)
def _task(seed: int, modules: tuple[str, ...], num_modules: int, command_seconds: float) -> RepairTask:
    """All episodes of a group have one seed, and so one task."""
    return task_of(seed, modules, num_modules, Workbench(command_seconds))


def _told(outcome: CommandOutcome, most_characters: int) -> str:
    """What the agent sees of a command: its output, shortened in the middle, and how it ended."""
    result = outcome.result
    output = result.stdout.decode(errors="replace")
    if len(output) > most_characters:
        half = most_characters // 2
        left_out = len(output) - 2 * half
        output = f"{output[:half]}\n[... {left_out} characters left out ...]\n{output[-half:]}"
    if output and not output.endswith("\n"):
        output += "\n"
    how = (
        f"exit status {result.exit_status}" if result.limit is None else f"ended by its limit {result.limit}"
    )
    lost = (
        ""
        if outcome.files is not None
        else "; its changes of files are lost: too many, too large, or no sandbox left"
    )
    return f"{output}[{how}{lost}]"


def _check(
    modules: tuple[str, ...], num_modules: int, command_seconds: float, output_characters: int
) -> None:
    """Raise ValueError for parameters that nothing can be made of."""
    if unknown := [module for module in modules if module not in draws]:
        raise ValueError(f"modules names {unknown[0]!r}, which is none of {', '.join(sorted(draws))}")
    if not 1 <= num_modules <= len(modules):
        raise ValueError(
            f"num_modules = {num_modules} is not from 1 to {len(modules)}, the number of modules"
        )
    if not command_seconds > 0:
        raise ValueError(f"command_seconds = {command_seconds} is not above 0")
    if output_characters < 2:  # noqa: PLR2004  # a begin and an end
        raise ValueError(f"output_characters = {output_characters} is below 2")
