r"""Rewards of code: what a response's last code block computes, in a sandbox, compared outside of it.

    [reward]
    function = "producers.rewards.code:reward"            # the share of the row's cases that pass
    function = "producers.rewards.code:all_or_nothing"    # 1 if all of them do, else 0

A row says what to test with in one of two forms:

    {"prompt": ..., "tests": [{"input": "2 3\n", "output": "5\n"}, ...]}     a program: its standard input and output
    {"prompt": ..., "entry_point": "add", "cases": [[[2, 3], 5], ...]}       a function: its arguments and value

Both functions compute one response at a time; `reward.num_processes` is how many are computed at once.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any

from producers.rewards.code_blocks import last_code_block
from producers.rewards.code_cases import Case, cases_of, solution_module
from producers.sandbox.blocking import run_to_end
from producers.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from producers.sandbox.config import SandboxConfig
    from producers.sandbox.session import SandboxSession


class CodeReward:
    """A reward function with limits of its own: `reward = CodeReward(seconds_per_case=5.0)` in a module of yours.

    `seconds_per_case` is wall time. Cases that have not ended `total_seconds` after the call began count as failed; let
    `reward.timeout_seconds` be 3 s more, for at that time a call fails instead of giving a reward. The first call tests
    the sandbox, in the same time, unless `start` has done so.
    """

    def __init__(
        self,
        *,
        sandbox: SandboxConfig | None = None,
        all_or_nothing: bool = False,
        seconds_per_case: float = 2.0,
        total_seconds: float = 6.0,
    ) -> None:
        self._sandbox = Sandbox(sandbox)
        self._all_or_nothing = all_or_nothing
        self._seconds_per_case = seconds_per_case
        self._total_seconds = total_seconds

    def start(self) -> None:
        """Test the sandbox, about a second. Raises SandboxRefused where it does not hold."""
        run_to_end(self._sandbox.start())

    def __call__(
        self,
        prompt: object,
        response: str,
        *,
        tests: object = None,
        entry_point: object = None,
        cases: object = None,
        **fields: object,
    ) -> dict[str, float]:
        """The reward, with the share of cases that passed and whether there was code.

        Raises ValueError for a row without cases, SandboxRefused where the sandbox does not hold.
        """
        deadline = monotonic() + self._total_seconds
        del prompt, fields
        row = cases_of(tests, entry_point, cases)
        code = last_code_block(response)
        passed = run_to_end(self._num_passed(code, row, deadline)) / len(row)
        return {
            "reward": float(passed == 1) if self._all_or_nothing else passed,
            "passed": passed,
            "has_code": float(code is not None),
        }

    async def _num_passed(self, code: str | None, cases: list[Case], deadline: float) -> int:
        # Also where there is no code: a run learns from its first response whether there is a sandbox.
        await self._sandbox.start()
        if code is None:
            return 0
        passed = 0
        async with AsyncExitStack() as stack:
            session: SandboxSession | None = None
            for case in cases:
                if monotonic() >= deadline:
                    break
                # The code of the case before may have ended its sandbox.
                if session is None or not session.is_open:
                    session = await stack.enter_async_context(self._sandbox.session())
                    await session.write(f"{solution_module}.py", code.encode(errors="surrogatepass"))
                passed += await self._passes(session, case, deadline)
        return passed

    async def _passes(self, session: SandboxSession, case: Case, deadline: float) -> bool:
        seconds_left = deadline - monotonic()
        if seconds_left <= 0:
            return False
        result = await session.run(
            [session.interpreter, *case.arguments],
            stdin=case.stdin,
            # Sets of text come in the same order each time.
            environment={"PYTHONHASHSEED": "0"},
            wall_seconds=min(self._seconds_per_case, seconds_left),
            output_bytes=max(self._sandbox.config.limits.output_bytes, 2 * case.expected_bytes),
        )
        return result.succeeded and case.accepts(result.stdout)


_share = CodeReward()
_all = CodeReward(all_or_nothing=True)


def reward(prompt: object, response: str, **fields: Any) -> dict[str, float]:
    """The share of the row's cases that the last code block of the response passes, from 0 to 1."""
    return _share(prompt, response, **fields)


def all_or_nothing(prompt: object, response: str, **fields: Any) -> dict[str, float]:
    """1 when the last code block of the response passes all cases of the row, else 0."""
    return _all(prompt, response, **fields)
