"""verifiers, unchanged, as a user brings it. Runs under an interpreter of its own, which does not have rollog.

The agent is verifiers' own: its harness `bash`, whose program asks for streams, and its interception server between
that program and the policy. The task has a user who asks twice.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

# Before the imports, which read it: verifiers keeps a cache there.
os.environ["HOME"] = str(Path(tempfile.gettempdir()) / "rollog-verifiers")

import verifiers.v1 as vf
from verifiers.v1.runtimes import SubprocessRuntime

if TYPE_CHECKING:
    from producers.agents.given import AgentTask, PolicyAccess

summarize_at_tokens = 3500
"""The conversation is summarized from here on."""


class Counting(vf.Task[vf.TaskData]):  # type: ignore[misc]  # verifiers is in another environment
    """Its reward is whether the last answer has the word."""

    @vf.reward  # type: ignore[untyped-decorator]  # the same
    async def says_four(self, trace: vf.Trace) -> float:
        """1.0 or 0.0."""
        return float("four" in trace.last_reply)


class InstalledPackages(SubprocessRuntime):  # type: ignore[misc]  # the same
    """Runs the harness's program with the packages of this interpreter, where uv would fetch some."""

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """The command that runs the script."""
        del env, activate
        assert self.workdir is not None
        await self.write("harness.py", script if isinstance(script, bytes) else script.encode())
        return [sys.executable, str(self.workdir / "harness.py")]


async def run(task: AgentTask, policy: PolicyAccess) -> str:
    """Two requests of a user, each answered with commands, and a summary of the first conversation."""
    agent = vf.Agent(
        vf.AgentConfig(
            harness={"id": "bash", "compaction": {"summarize_at_tokens": summarize_at_tokens}},
            runtime=vf.SubprocessConfig(),
            client=vf.EvalClientConfig(base_url=policy.base_url, api_key_var="OPENAI_API_KEY"),
            model=policy.model,
        )
    )
    box = InstalledPackages(vf.SubprocessConfig())
    await box.start()
    try:
        counting = Counting(vf.TaskData(prompt=task.text, system_prompt="Answer in one sentence."))
        async with agent.interaction(counting, runtime=box) as talk:
            await talk.turn()
            answer = await talk.turn("And without the first?")
    finally:
        await box.stop()
    return f"{talk.trace.stop_condition} {talk.trace.reward}: {answer.last_reply}"
