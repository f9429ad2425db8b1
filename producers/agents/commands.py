"""Agents that are programs: each session runs one, in a sandbox whose only way out is the policy's endpoint.

A program gets the task as JSON on its standard input, and in a sandbox as `task.json` in its work directory; the word
`{prompt}` of its command is the prompt's text. OPENAI_BASE_URL and OPENAI_API_KEY say where it asks the policy. Its
standard output is its answer; any exit status but 0 is an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from producers.agents import forwarder
from producers.agents.given import AgentTask
from producers.agents.ports import AgentOrder, AgentResult
from producers.processes.ending import kill_group, kill_tree
from producers.processes.hosts import drain_seconds
from producers.processes.walls import ProcessWalls
from producers.sandbox.config import endpoint_path
from rollog.kernel.errors import AgentFailed, DataError, SandboxError
from rollog.kernel.processes import launcher_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.sandbox.sandbox import Sandbox

_most_output_bytes = 1 << 20
_most_shown_characters = 500
_prompt_word = "{prompt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWords:
    """A program with its arguments, and the variables that it gets besides those of the endpoint."""

    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)

    def words(self, order: AgentOrder) -> list[str]:
        """The words with the prompt in its place. Raises AgentFailed for a prompt that cannot stand there."""
        text = AgentTask(order.prompt_id, order.prompt).text
        if _prompt_word in self.command and "\0" in text:
            raise AgentFailed(
                f"prompt {order.prompt_id!r} holds a null byte, which no word of a command can: leave {_prompt_word} "
                "out of agent.command and read the task from standard input"
            )
        return [text if word == _prompt_word else word for word in self.command]


class SandboxedCommands:
    """Runs each program in a sandbox of its own."""

    def __init__(self, words: CommandWords, sandbox: Sandbox) -> None:
        self._words = words
        self._sandbox = sandbox
        self._forwarder = Path(forwarder.__file__).read_text(encoding="utf-8")

    async def start(self) -> None:
        """Test the walls. Raises SandboxRefused."""
        await self._sandbox.start()

    async def run(self, order: AgentOrder) -> AgentResult:
        """One session. Raises AgentFailed; SandboxRefused where there is no sandbox here."""
        task = task_json(order)
        variables = {**self._words.variables, "OPENAI_API_KEY": order.key}
        try:
            async with self._sandbox.session() as cell:
                await cell.write("task.json", task)
                result = await cell.run(
                    [
                        *(cell.interpreter, "-I", "-S", "-c", self._forwarder, endpoint_path),
                        *self._words.words(order),
                    ],
                    stdin=task,
                    environment=variables,
                )
        except (SandboxError, ValueError) as error:
            raise AgentFailed(f"the agent's sandbox: {error}") from error
        if result.limit is not None:
            raise AgentFailed(f"the agent was ended by the sandbox's limit {result.limit.value}")
        return _result(result.exit_status, result.stdout, result.stderr)

    async def close(self) -> None:
        """Each run ends its own sandbox."""


class PlainCommands:
    """Runs each program without a sandbox, in a process group and a work directory of its own."""

    def __init__(self, words: CommandWords) -> None:
        self._words = words

    async def start(self) -> None:
        """Nothing: a program that is not there fails its session by name."""

    async def run(self, order: AgentOrder) -> AgentResult:
        """One session. Raises AgentFailed, DataError."""
        with tempfile.TemporaryDirectory(prefix="rollog-agent-", ignore_cleanup_errors=True) as directory:
            return await self._run(order, directory)

    async def close(self) -> None:
        """Each run ends its own process."""

    async def _run(self, order: AgentOrder, directory: str) -> AgentResult:
        own = {"OPENAI_BASE_URL": f"{order.address}/v1", "OPENAI_API_KEY": order.key}
        usual = ProcessWalls().variables(os.environ)
        # It is no program of ours, and must not import what this process imports.
        del usual["PYTHONPATH"]
        launcher = launcher_command(self._words.words(order))
        try:
            process = await asyncio.create_subprocess_exec(
                *launcher,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                cwd=directory,
                env={**usual, **self._words.variables, **own},
            )
        except OSError as error:
            raise DataError(
                f"agent.command = {list(self._words.command)} cannot be started: {error}"
            ) from error
        assert process.stdin is not None
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        reading = [asyncio.create_task(_output(stream), name=f"output of {order.name}") for stream in streams]
        try:
            process.stdin.write(task_json(order))
            with suppress(OSError):
                process.stdin.write_eof()
            status = await process.wait()
            # What it left behind may hold its output open.
            kill_group(process.pid)
            await asyncio.wait(reading, timeout=drain_seconds)
            stdout, stderr = (each.result() if each.done() else b"" for each in reading)
        finally:
            if process.returncode is None:
                kill_tree(process.pid)
                await process.wait()
            for each in reading:
                each.cancel()
        return _result(status, stdout, stderr)


def task_json(order: AgentOrder) -> bytes:
    """The task as a program reads it."""
    task = {
        "prompt_id": order.prompt_id,
        "prompt": order.prompt,
        "fields": dict(order.fields),
        "seed": order.seed,
    }
    return json.dumps(task).encode()


async def _output(stream: asyncio.StreamReader) -> bytes:
    """What a stream brings, cut to the most that is kept; the rest is read and dropped."""
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        kept += chunk[: _most_output_bytes - len(kept)]
    return bytes(kept)


def _result(status: int | None, stdout: bytes, stderr: bytes) -> AgentResult:
    if status != 0:
        said = stderr.decode(errors="replace").strip()[-_most_shown_characters:]
        raise AgentFailed(f"the agent's command ended with status {status}: {said}")
    return AgentResult(answer=stdout.decode(errors="replace").strip())
