"""Functions as agents, in processes of their own, without a policy to ask."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support.bare_interpreter import bare_interpreter
from support.served_session import until

from producers.agents.ports import AgentOrder
from producers.agents.process import FunctionAgents, FunctionLimits
from producers.agents.results import result_of
from rollog.kernel.errors import AgentFailed
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)


def an_order(name: str = "1/0", **fields: Any) -> AgentOrder:
    return AgentOrder(
        name=name, prompt_id="p", prompt="hi", fields=fields, seed=1, address="http://127.0.0.1:1", key="k"
    )


def agents(function: str) -> FunctionAgents:
    return FunctionAgents(f"support.silent_agents:{function}")


async def pids_in(path: Path) -> list[int]:
    await until(path.is_file)
    return list(map(int, (await asyncio.to_thread(path.read_text, "ascii")).split()))


def test_many_sessions_run_at_once_and_each_has_its_own_answer() -> None:
    async def scenario() -> None:
        runner = agents("echoes")
        try:
            orders = [an_order(f"{number}/0", number=number) for number in range(20)]
            results = await asyncio.gather(*(runner.run(order) for order in orders))
            assert [result.answer for result in results] == [str(number) for number in range(20)]
        finally:
            await runner.close()

    asyncio.run(scenario())


def test_an_agent_under_another_interpreter_sees_nothing_of_ours_but_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent_elsewhere.py").write_text(source_of_one_elsewhere, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        runner = FunctionAgents("agent_elsewhere:sees", str(bare_interpreter(tmp_path)))
        try:
            assert (await runner.run(an_order())).answer == "[]"
        finally:
            await runner.close()

    asyncio.run(scenario())


source_of_one_elsewhere = """
import importlib.util

def sees(task, policy):
    names = ("rollog", "schemas", "numpy", "host", "ending")
    return str([name for name in names if importlib.util.find_spec(name)])
"""


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_session_that_is_ended_leaves_nothing_of_what_it_started(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        runner = agents("hangs")
        try:
            running = asyncio.create_task(runner.run(an_order(pids=str(tmp_path / "pids"))))
            pids = await pids_in(tmp_path / "pids")
            if how == "cancelled":
                running.cancel()
                await asyncio.wait({running})
            else:
                await runner.close()
                with pytest.raises(AgentFailed):
                    await running
            await until(lambda: not any(map(exists, pids)))
        finally:
            await runner.close()

    asyncio.run(scenario())


def test_a_host_that_dies_takes_its_sessions_along_and_the_next_one_starts_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        runner = agents("hangs_or_echoes")
        try:
            running = asyncio.create_task(runner.run(an_order(pids=str(tmp_path / "pids"))))
            pids = await pids_in(tmp_path / "pids")
            assert runner.pid is not None
            os.kill(runner.pid, signal.SIGKILL)
            with pytest.raises(AgentFailed, match="with the process that started it and gave no answer"):
                await running
            await until(lambda: not exists(pids[0]))
            assert (await runner.run(an_order("2/0", number=7))).answer == "7"
        finally:
            await runner.close()

    asyncio.run(scenario())


def test_a_host_that_ends_no_session_any_more_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = FunctionLimits(kill_seconds=1.0)
        runner = FunctionAgents("support.silent_agents:stops_its_parent_or_echoes", limits=limits)
        try:
            running = asyncio.create_task(runner.run(an_order(pids=str(tmp_path / "pids"))))
            pids = await pids_in(tmp_path / "pids")
            running.cancel()
            await asyncio.wait({running})
            await until(lambda: not exists(pids[0]))
            async with asyncio.timeout(60):
                assert (await runner.run(an_order("2/0", number=7))).answer == "7"
        finally:
            await runner.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"answer": 3}, "answer = 3, which is no text"),
        ({"reward": "high"}, "reward = high, which is no finite number"),
        ({"reward": 10**400}, "which is no finite number"),
        ({"reward": 1, "components": [1]}, "components that are no dict"),
        ({"reward": 1, "turn_rewards": [0, None]}, r"turn_rewards\[1\] = None"),
    ],
)
def test_a_result_that_cannot_be_used_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(AgentFailed, match=said):
        result_of(given)
