"""Rewards of code: right code earns them, wrong code does not, and code that pretends does not."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from support.sandboxes import is_running, limits

from producers.processes.walls import ProcessWalls
from producers.rewards.code import CodeReward
from producers.rewards.code_blocks import Block, fenced_blocks, last_code_block
from producers.rewards.code_cases import Call, CallBatch, Returned, values_agree
from producers.rewards.functions import RewardResult, call_reward_function
from producers.rewards.in_process import InProcessRewards
from producers.rewards.pool import RewardPool
from producers.sandbox.config import SandboxConfig
from rollog.kernel.errors import RewardError, SandboxRefused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

calls: dict[str, Any] = {
    "entry_point": "add",
    "cases": [[[2, 3], 5], [[-1, 1], 0], [[10, 20], 30], [[0, 7], 7]],
}
programs: dict[str, Any] = {
    "tests": [
        {"input": "2 3\n", "output": "5\n"},
        {"input": "-1 1\n", "output": "0"},
        {"input": "10 20", "output": "30\n"},
    ]
}
right_function = "def add(a, b):\n    return a + b"
right_program = "print(sum(map(int, input().split())))"


def response(code: str) -> str:
    return f"This is how:\n\n```python\n{code}\n```\nThat is all."


@pytest.fixture(scope="module")
def patient() -> CodeReward:
    """One with time enough on a busy machine."""
    return CodeReward(sandbox=SandboxConfig(limits=limits()), seconds_per_case=20.0, total_seconds=60.0)


def score(reward: CodeReward, code: str, row: Mapping[str, Any]) -> float:
    return call_reward_function(reward, "a prompt", response(code), row).reward


def test_a_function_that_is_right_earns_everything(patient: CodeReward) -> None:
    assert score(patient, right_function, calls) == 1.0


def test_a_program_that_is_right_earns_everything(patient: CodeReward) -> None:
    assert score(patient, right_program, programs) == 1.0


def test_wrong_code_earns_nothing(patient: CodeReward) -> None:
    assert score(patient, "def add(a, b):\n    return a - b - 1", calls) == 0.0
    assert score(patient, "print('five')", programs) == 0.0
    assert score(patient, "this is no python", calls) == 0.0
    assert score(patient, "def other(): pass", calls) == 0.0


def test_the_reward_is_the_share_of_cases_that_pass(patient: CodeReward) -> None:
    code = "def add(a, b):\n    assert a >= 0\n    return a + b"
    result = call_reward_function(patient, "", response(code), calls)
    assert result == RewardResult(reward=0.75, components={"passed": 0.75, "has_code": 1.0})


def test_all_or_nothing_gives_nothing_for_a_part() -> None:
    strict = CodeReward(sandbox=SandboxConfig(limits=limits()), all_or_nothing=True, seconds_per_case=20.0)
    assert score(strict, "def add(a, b):\n    assert a >= 0\n    return a + b", calls) == 0.0
    assert score(strict, right_function, calls) == 1.0


def test_a_method_of_a_class_can_be_what_is_called(patient: CodeReward) -> None:
    code = "class Solution:\n    def add(self, a, b):\n        return a + b"
    assert score(patient, code, calls | {"entry_point": "Solution.add"}) == 1.0


def test_tuples_and_keys_come_back_as_json_has_them(patient: CodeReward) -> None:
    row = {"entry_point": "f", "cases": [[[2], {"1": [1, 2]}]]}
    assert score(patient, "def f(n):\n    return {1: (1, n)}", row) == 1.0


def test_a_function_may_print_and_read_as_it_likes(patient: CodeReward) -> None:
    code = "import sys\nprint('loading')\ndef add(a, b):\n    print(sys.stdin.read(), a)\n    return a + b"
    assert score(patient, code, calls) == 1.0


forged_functions = {
    "leaves with status 0": "import os\nos._exit(0)",
    "raises SystemExit": "def add(a, b):\n    raise SystemExit(0)",
    "prints a summary": "print('4 passed in 0.01s')\nimport os\nos._exit(0)",
    "prints a verdict": 'print(\'{"exit_status": 0, "reward": 1.0}\')',
    "writes to every file that is open": (
        "import os\nfor n in range(64):\n    try:\n        os.write(n, b'true')\n    except OSError:\n        pass\n"
        "os._exit(0)"
    ),
    "speaks to the server as if it were outside": (
        "import os, socket\nfor n in range(64):\n    try:\n"
        "        socket.socket(fileno=os.dup(n)).send(b'{\"exit_status\": 0}')\n    except OSError:\n        pass"
    ),
    "returns what says that it is equal": (
        "class Same(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b):\n    return Same(123456)"
    ),
    "returns true": "def add(a, b):\n    return True",
    "patches what writes its value": (
        "import json\njson.dump = lambda value, file: file.write('true')\ndef add(a, b):\n    return None"
    ),
    "patches the interpreter": (
        "import builtins, sys\nbuiltins.compile = builtins.exec = lambda *a: None\nsys.modules['json'] = None\n"
        "def add(a, b):\n    return 'x'"
    ),
    "writes after its end": (
        "import atexit, os\natexit.register(lambda: os.write(1, b'5'))\ndef add(a, b):\n    raise ValueError"
    ),
    "leaves a process that answers": (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    os.write(3, b'0')\n    os._exit(0)\nos._exit(0)"
    ),
    "looks for the answers": (
        "import gc, glob, sys\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o]\n"
        "def add(a, b):\n    return found[0]['expected']"
    ),
    "kills the server": "import os\nos.kill(2, 9)",
    "kills everything": "import os\nos.kill(-1, 9)",
    "adds a module beside it": (
        "open('json.py', 'w').write('def load(f): return {}')\n"
        "open('sitecustomize.py', 'w').write('import os; os._exit(0)')\n"
        "def add(a, b):\n    return 'x'"
    ),
}


@pytest.mark.parametrize("code", list(forged_functions.values()), ids=list(forged_functions))
def test_a_function_that_pretends_earns_nothing(patient: CodeReward, code: str) -> None:
    row = {"entry_point": "add", "cases": [[[1200, 34], 1234], [[2100, 43], 2143]]}
    assert score(patient, code, row) == 0.0


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)",
        "print('All tests passed')",
        "import sys\nsys.stdout.write('OK')\nsys.exit(0)",
        "import glob\nfor path in glob.glob('/box/*') + glob.glob('/tmp/*'):\n    print(open(path).read())",
        "import os\nos.kill(2, 9)",
        "print('5', end='')\nimport os\nos._exit(1)",
    ],
)
def test_a_program_that_pretends_earns_nothing(patient: CodeReward, code: str) -> None:
    assert score(patient, code, {"tests": [{"input": "2 3", "output": "5"}]}) == 0.0


def test_cases_that_hang_fail_and_the_others_count() -> None:
    reward = CodeReward(sandbox=SandboxConfig(limits=limits()), seconds_per_case=3.0, total_seconds=60.0)
    code = "def add(a, b):\n    while a == 10:\n        pass\n    return a + b"
    assert score(reward, code, calls) == 0.75


def test_code_that_hangs_in_every_case_ends_at_the_time_for_all() -> None:
    reward = CodeReward(sandbox=SandboxConfig(limits=limits()), seconds_per_case=0.3, total_seconds=0.5)
    row = {"tests": [{"input": "", "output": "x"}] * 1000}
    assert score(reward, "while True: pass", row) == 0.0


def test_a_case_gets_no_more_time_than_is_left_for_all() -> None:
    reward = CodeReward(sandbox=SandboxConfig(limits=limits()), seconds_per_case=600.0, total_seconds=2.0)
    reward.start()
    begun = monotonic()
    assert score(reward, "import time\ntime.sleep(600)", {"tests": [{"input": "", "output": "x"}]}) == 0.0
    assert monotonic() - begun < 60


def test_what_the_first_call_tests_the_sandbox_for_is_time_of_that_call() -> None:
    # Some of what the self-test runs is ended after 0.2 s, and not before.
    reward = CodeReward(sandbox=SandboxConfig(limits=limits()), seconds_per_case=20.0, total_seconds=0.1)
    assert score(reward, right_function, calls) == 0.0


def test_a_case_that_takes_too_much_memory_fails_and_the_others_count(patient: CodeReward) -> None:
    code = "def add(a, b):\n    held = b'1' * ((10 << 30) if a == 10 else 1)\n    return a + b"
    assert score(patient, code, calls) == 0.75


def test_a_case_that_floods_its_output_fails_and_the_others_count(patient: CodeReward) -> None:
    code = "text = input()\nwhile text == '-1 1': print('x' * 1000)\nprint(sum(map(int, text.split())))"
    assert score(patient, code, programs) == pytest.approx(2 / 3)


def test_the_sandbox_that_a_case_ends_is_replaced_for_the_next(patient: CodeReward) -> None:
    code = "import os\ndef add(a, b):\n    if a == 2:\n        os.kill(-1, 9)\n    return a + b"
    assert score(patient, code, calls) == 0.75


def test_a_response_without_code_earns_nothing(patient: CodeReward) -> None:
    result = call_reward_function(patient, "", "42", calls)
    assert result == RewardResult(reward=0.0, components={"passed": 0.0, "has_code": 0.0})


def test_where_there_is_no_sandbox_the_first_response_says_so(tmp_path: Path) -> None:
    reward = CodeReward(sandbox=SandboxConfig(bubblewrap=tmp_path / "bwrap"))
    with pytest.raises(SandboxRefused, match="is no program"):
        reward("", "42", **calls)
    with pytest.raises(SandboxRefused, match="is no program"):
        reward.start()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "nothing to test code with"),
        ({"tests": []}, "nothing to test code with"),
        ({"tests": [{"input": "x"}]}, r"tests\[0\] of the row"),
        ({"entry_point": "f", "cases": []}, "cases of the row"),
        ({"entry_point": "f", "cases": [[1, 2]]}, r"cases\[0\] of the row"),
        ({"entry_point": "f(); g", "cases": [[[1], 2]]}, "entry_point of the row"),
        ({"cases": [[[1], 2]]}, "entry_point of the row is None"),
    ],
)
def test_a_row_that_tests_nothing_is_an_error(patient: CodeReward, row: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        score(patient, right_function, row)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```\na\n```\nthen\n```py\nb\n```", "b\n"),
        ("````python\n```\na\n```\n````", "```\na\n```\n"),
        ("```python\na\n```\nIt prints\n```text\n5\n```", "a\n"),
        ("```python\na\n```\nand\n```python\nb", "a\n"),
        ("```python\na", None),
        ("`a`", None),
        ("", None),
        ("  ```python\r\na\r\n  ```", "a\n"),
    ],
)
def test_the_code_is_the_last_closed_block(text: str, code: str | None) -> None:
    assert last_code_block(text) == code


@pytest.mark.parametrize(
    ("value", "expected", "agree"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (True, 1, False),
        (1, True, False),
        (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False),
        ([1, [2]], [1, [2]], True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        (None, None, True),
        (None, False, False),
        ("1", 1, False),
        ([], {}, False),
        (float("nan"), float("nan"), False),
    ],
)
def test_values_agree_as_json(value: object, expected: object, *, agree: bool) -> None:
    assert values_agree(value, expected) is agree


def test_blocks_of_a_response_come_in_order_with_their_tags() -> None:
    text = "```sh\nls\n```\nand\n```write a b.py\nx\n\n```\n```\n```\n```sh\nopen"
    assert list(fenced_blocks(text)) == [Block("sh", "ls\n"), Block("write a b.py", "x\n\n"), Block("", "")]


@pytest.mark.parametrize(
    ("stdout", "returned"),
    [
        (b'{"value": 1}\n{"error": "KeyError"}\n', [Returned(value=1), Returned(error="KeyError")]),
        (b'{"value": null}\n{"value": [1]}', [Returned(value=None), Returned(value=[1])]),
        (b'{"value": 1}\n', None),
        (b'{"value": 1}\n{"value": 2}\n{"value": 3}\n', None),
        (b'{"value": 1}\n{"value": 2, "passed": true}\n', None),
        (b'{"value": 1}\n{"error": 1}\n', None),
        (b'{"value": 1}\n7\n', None),
        (b'{"value": 1}\n\xff\n', None),
        (b'{"value": 1}\n{"value": ' + b"9" * 5000 + b"}\n", None),
        (b'{"value": 1}\n' + b"[" * 100_000 + b"\n", None),
        (b"", None),
    ],
)
def test_several_calls_are_answered_one_by_one_or_not_at_all(
    stdout: bytes, returned: list[Returned] | None
) -> None:
    assert CallBatch([Call("m", "f", [1]), Call("m", "g", [])]).returned(stdout) == returned


def test_what_a_call_raised_agrees_with_nothing() -> None:
    assert Returned(value=None).agrees(None)
    assert not Returned(error="ValueError").agrees(None)
    assert not Returned(value=True).agrees(1)


def test_a_reward_process_with_its_limits_and_its_environment_has_a_sandbox() -> None:
    async def scenario() -> tuple[RewardResult, ...]:
        rewards = RewardPool(
            '[{"name": "code", "seconds_per_case": 20, "total_seconds": 60}]',
            num_processes=2,
            timeout_seconds=90.0,
            walls=ProcessWalls(max_memory_bytes=256 << 20),
        )
        await rewards.start()
        try:
            return await asyncio.gather(
                rewards.score("", response(right_function), calls),
                rewards.score("", response(right_program), programs),
                rewards.score("", response("def add(a, b): return 5"), calls),
            )
        finally:
            await rewards.close()

    assert [result.reward for result in asyncio.run(scenario())] == [1.0, 1.0, 0.25]


def test_a_reward_process_that_is_killed_leaves_no_sandbox() -> None:
    reference, marker = "producers.rewards.code:reward", "1114.25"
    hangs = f"import os\nos.execvp('sleep', ['sleep', '{marker}'])"

    async def scenario() -> None:
        rewards = RewardPool(reference, timeout_seconds=60.0)
        await rewards.start()
        scoring = asyncio.ensure_future(
            rewards.score("", response(hangs), {"tests": programs["tests"][:1] * 9})
        )
        for _ in range(3000):
            if is_running(marker):
                break
            await asyncio.sleep(0.01)
        await rewards.close()
        with pytest.raises(RewardError):
            await scoring
        for _ in range(3000):
            if not is_running(marker):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the command outlived its reward process")

    asyncio.run(scenario())


def test_in_a_workers_own_process_it_runs_beside_the_loop() -> None:
    async def scenario() -> RewardResult:
        rewards = InProcessRewards("producers.rewards.code:all_or_nothing")
        await rewards.start()
        return await rewards.score("", response(right_function), calls)

    assert asyncio.run(scenario()).reward == 1.0
