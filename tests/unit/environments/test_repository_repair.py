"""Repairing repositories: what an agent can do, see and take, and what is kept from it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.repairing_agents import a_write, knowing, run_the_tests, submit, the_repair, the_task
from support.sandboxes import eventually, is_running

from producers.environments.adapters.repository_repair import RepositoryRepair
from producers.environments.episode import Bounds, Episode
from producers.environments.names import EnvironmentSpec
from producers.environments.pool import EnvironmentPool
from producers.environments.process import EnvironmentLimits
from producers.environments.repair.drawing import original
from producers.environments.repair.workbench import Workbench
from rollog.kernel.errors import EnvironmentTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from producers.environments.ports import StepResult

pytestmark = pytest.mark.timeout(120)
seed = 11


@pytest.fixture
def episode() -> Iterator[Episode]:
    episode = an_episode()
    yield episode
    episode.close()


def an_episode(**parameters: Any) -> Episode:
    """One that has begun, with time enough on a busy machine."""
    episode = Episode(RepositoryRepair(**{"command_seconds": 30.0} | parameters), Bounds())
    episode.reset(seed)
    return episode


def said(episode: Episode, action: str) -> str:
    return episode.step(action).observation.text


def run(episode: Episode, command: str) -> str:
    return said(episode, f"```sh\n{command}\n```")


def played(episode: Episode, agent: Callable[[str], str], seen: str = "") -> StepResult:
    while True:
        result = episode.step(agent(seen))
        seen = result.observation.text
        if result.is_over:
            return result


def test_who_repairs_the_defect_is_rewarded(episode: Episode) -> None:
    result = played(episode, knowing(the_task(seed)))
    assert (result.reward, result.is_over, result.truncated) == (1.0, True, False)
    info = result.observation.info
    assert info["passed"] == info["hidden"] > 100


def test_who_submits_what_was_there_is_not(episode: Episode) -> None:
    result = episode.step(submit)
    assert result.reward == 0.0
    assert 0 < result.observation.info["passed"] < result.observation.info["hidden"]


def test_who_makes_the_tests_pass_that_are_seen_is_not(episode: Episode) -> None:
    """By heart: the arguments of the tests with their values, and all else as it was."""
    module = the_task(seed).module
    learnt = f"""
import ast, pathlib
tests = ast.parse(pathlib.Path("tests/test_{module}.py").read_text())
known = {{}}
for node in ast.walk(tests):
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "assertEqual":
        call, value = node.args
        arguments = [ast.literal_eval(each) for each in call.args]
        known.setdefault(call.func.attr, {{}})[repr(arguments)] = ast.literal_eval(value)
path = pathlib.Path("toolbox/{module}.py")
path.write_text(path.read_text() + f'''
_known = {{known!r}}
def _learnt(name, function):
    def answer(*arguments):
        values = _known[name]
        return values[repr(list(arguments))] if repr(list(arguments)) in values else function(*arguments)
    return answer
for _name in _known:
    globals()[_name] = _learnt(_name, globals()[_name])
''')
"""
    said(episode, a_write("learn.py", learnt))
    assert "exit status 0" in run(episode, "python3 learn.py && python3 -m unittest")
    assert episode.step(submit).reward == 0.0


def test_a_repair_that_breaks_another_function_is_not(episode: Episode) -> None:
    task = the_task(seed)
    said(episode, the_repair(task))
    other = next(
        path
        for path in task.files
        if path.startswith("toolbox/") and task.module not in path[8:] and not path.endswith("__init__.py")
    )
    run(episode, f"sed -i 's/return /return not /' {other}")
    assert episode.step(submit).reward == 0.0


def test_files_stay_and_processes_and_other_places_do_not(episode: Episode) -> None:
    assert (
        run(episode, "echo kept > a; mkdir b; echo too > b/c; echo x > /tmp/x; sleep 1115.25 &")
        == "[exit status 0]"
    )
    assert not is_running("1115.25")
    assert run(episode, "cat a b/c; ls /tmp /dev/shm").startswith("kept\ntoo\n/dev/shm:\n\n/tmp:\n")


def test_the_agent_sees_output_and_error_in_their_order_with_the_status(episode: Episode) -> None:
    assert run(episode, "echo one; echo two >&2; echo three; exit 3") == "one\ntwo\nthree\n[exit status 3]"
    assert run(episode, "kill -9 $$") == "[exit status -9]"
    assert run(episode, "no-such-program").endswith("not found\n[exit status 127]")
    assert run(episode, r"printf '\377x'") == "\N{REPLACEMENT CHARACTER}x\n[exit status 0]"


def test_long_output_is_shortened_in_the_middle() -> None:
    episode = an_episode(output_characters=100)
    text = run(episode, "echo begin; seq 1 1000; echo end")
    assert text.startswith("begin\n1\n2\n")
    assert text.endswith("\nend\n[exit status 0]")
    assert "characters left out" in text
    assert len(text) < 200


def test_what_is_no_action_costs_the_turn_and_says_why(episode: Episode) -> None:
    assert said(episode, "Hm.").startswith(
        "Nothing was done: 0 actions were given; give one, as a closed block"
    )
    assert said(episode, a_write("../x", "x")).startswith("Nothing was done: '../x' is no path")
    assert "0 times" in said(episode, "```replace README.md\nnowhere\n=====\nx\n```")
    assert run_the_tests_fails(episode)


def run_the_tests_fails(episode: Episode) -> bool:
    return "FAILED" in said(episode, run_the_tests)


def test_files_that_are_written_are_there_for_commands(episode: Episode) -> None:
    assert said(episode, a_write("deep/er/x.txt", "one\ntwo")) == "deep/er/x.txt is written."
    assert said(episode, "```replace deep/er/x.txt\none\n=====\n1\n```") == "deep/er/x.txt is changed."
    assert run(episode, "cat deep/er/x.txt") == "1\ntwo\n[exit status 0]"


def test_links_and_pipes_do_not_stay(episode: Episode) -> None:
    run(
        episode,
        "ln -s /usr/bin/env link; ln -s /tmp dir; mkfifo pipe; chmod 000 README.md; echo x > $(printf 'a\\nb')",
    )
    assert run(episode, "ls") == "tests\ntoolbox\n[exit status 0]"


def test_more_files_than_fit_are_not_kept(episode: Episode) -> None:
    for command in (
        "seq 1 300 | xargs touch",
        "head -c 300000 /dev/urandom > large",
        "truncate -s 8M sparse",
    ):
        assert "its changes of files are lost" in run(episode, command)
    assert run(episode, "ls") == "README.md\ntests\ntoolbox\n[exit status 0]"


@pytest.mark.parametrize(
    ("command", "seconds", "limits"),
    [
        ("sleep MARK", 1.5, {"wall_seconds"}),
        ("while :; do :; done", 1.5, {"wall_seconds", "cpu_seconds"}),
        ("b() { b | b & }; b; sleep MARK", 1.5, {"wall_seconds", "cpu_seconds"}),
        ("yes | head -c 10G", 30.0, {"output_bytes"}),
        ("yes", 30.0, {"output_bytes"}),
        ("kill -9 2; sleep MARK", 30.0, {"sandbox"}),
        ("kill -STOP 2; sleep MARK", 1.5, {"wall_seconds"}),
        ("python3 -c 'import os; [os.mkdir(str(n)) for n in range(10**7)]'", 30.0, {"num_files"}),
    ],
)
def test_a_command_that_takes_too_much_is_ended_and_the_episode_goes_on(
    command: str, seconds: float, limits: set[str]
) -> None:
    # Of this process alone: another one may run the same tests on this machine.
    mark = f"1116.{os.getpid()}"
    episode = an_episode(command_seconds=seconds)
    said(episode, a_write("mine", "kept"))
    text = run(episode, command.replace("MARK", mark))
    assert any(f"[ended by its limit {name}" in text for name in limits), text[-300:]
    assert len(text) < 5_000
    assert not is_running(mark)
    # On a machine busy with the bomb's own leftovers a command of 1.5 s may be short.
    assert said(an_episode_going_on(episode), "```sh\ncat mine\n```") == "kept\n[exit status 0]"


def an_episode_going_on(episode: Episode) -> Episode:
    """The same one, with more time for a command."""
    other = Episode(RepositoryRepair(command_seconds=30.0), Bounds())
    other.restore(episode.snapshot())
    return other


def test_a_command_that_wants_ten_gigabytes_of_memory_gets_none(episode: Episode) -> None:
    text = run(episode, "python3 -c 'x = b\"1\" * (10 << 30)'")
    assert "MemoryError" in text


def test_a_snapshot_goes_on_in_another_instance(episode: Episode) -> None:
    task = the_task(seed)
    said(episode, the_repair(task))
    run(episode, "head -c 300 /dev/urandom > bytes; rm README.md")
    before = run(episode, "sha256sum bytes; ls")
    snapshot = episode.snapshot()
    other = Episode(RepositoryRepair(command_seconds=30.0), Bounds())
    assert other.restore(snapshot).text == before
    assert run(other, "sha256sum bytes; ls") == before
    assert other.step(submit).reward == episode.step(submit).reward == 1.0


def test_a_snapshot_that_leads_elsewhere_is_refused() -> None:
    state = {"seed": 1, "files": json.dumps({"../../x": "x"}), "seen": "x"}
    with pytest.raises(ValueError, match="no path below"):
        RepositoryRepair().restore(json.dumps(state))


_look_everywhere = """
import os, sys
wanted = [line[::-1] for line in open("backwards", "rb").read().splitlines()]
roots = ["/" + name for name in os.listdir("/") if not os.path.islink("/" + name)]
for directory, folders, names in (found for root in sorted(roots) for found in os.walk(root)):
    if directory.startswith(("/proc/sys", "/proc/self", "/proc/thread-self", "/sys")):
        folders.clear()
    for name in names:
        path = os.path.join(directory, name)
        # A pipe, its own output among them, would be waited for.
        if not os.path.isfile(path) or name in ("kmsg", "kcore"):
            continue
        try:
            # What the system brings is looked through where it could be one of the modules.
            is_ours = not path.startswith(("/usr/", sys.base_prefix + "/"))
            if is_ours or (path.endswith(".py") and os.path.getsize(path) < 8_000):
                content = open(path, "rb").read(1 << 20)
            else:
                continue
        except OSError:
            continue
        for number, text in enumerate(wanted):
            if text in content:
                print("FOUND", number, path)
print("LOOKED")
"""


def found_inside(wanted: list[str], files: dict[str, bytes]) -> list[str]:
    """Number and path of each of these lines in any file; they are given backwards, so as not to be found there."""
    backwards = "\n".join(line.strip()[::-1] for line in wanted).encode()
    given = {**files, "look.py": _look_everywhere.encode(), "backwards": backwards}
    outcome = Workbench(200.0).run(given, "python3 look.py 2>&1")
    lines = outcome.result.stdout.decode().splitlines()
    assert lines[-1:] == ["LOOKED"], lines[-3:]
    return [line.removeprefix("FOUND ") for line in lines[:-1]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_neither_the_original_nor_a_hidden_case_is_anywhere_inside() -> None:
    task = the_task(seed)
    right_line = original(task.module).splitlines()[task.line_number - 1]
    planted_line = task.files[f"toolbox/{task.module}.py"].decode().splitlines()[task.line_number - 1]
    longest = sorted(task.hidden, key=lambda case: len(str(case.call.arguments)))[-5:]
    hidden = [str(case.call.arguments) for case in longest]
    # The line with the defect is found, and none of the others.
    found = found_inside([planted_line, right_line, *hidden], dict(task.files))
    assert found == [f"0 /box/toolbox/{task.module}.py"]


def test_the_folder_of_the_originals_is_hidden_wherever_it_lies() -> None:
    (hidden,) = Workbench(30.0)._config.hidden
    assert (hidden / "environments" / "repair" / "toolbox" / "days.py").exists()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"modules": ["days", "none"]}, "modules names 'none'"),
        ({"modules": ["days"], "num_modules": 2}, "num_modules = 2 is not from 1 to 1"),
        ({"num_modules": 0}, "num_modules = 0"),
        ({"command_seconds": 0}, "command_seconds = 0"),
        ({"output_characters": 0}, "output_characters = 0"),
    ],
)
def test_parameters_that_make_no_task_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RepositoryRepair(**parameters)


def test_a_hang_in_one_episode_costs_the_pool_nothing() -> None:
    """The bounds of a command are below those of a step."""

    async def scenario() -> None:
        pool = EnvironmentPool(EnvironmentLimits(num_processes=1, step_timeout_seconds=60.0))
        spec = EnvironmentSpec(environment="repository_repair", parameters={"command_seconds": 2.0})
        try:
            hanging, other = await pool.open(spec, 1), await pool.open(spec, 2)
            await hanging.reset()
            await other.reset()
            # What waits is the shell itself: after the bomb it may find no process for a command.
            bomb = "```sh\nyes | head -c 100G & b() { b | b & }; b; wait\n```"
            ended, beside = await asyncio.gather(hanging.step(bomb), other.step("```sh\necho here\n```"))
            assert "ended by its limit" in ended.observation.text
            assert beside.observation.to_act
            assert not (await hanging.step("```sh\necho on\n```")).is_over
            assert (pool.counts.failed, pool.counts.kills) == (0, 0)
            await hanging.close()
            await other.close()
        finally:
            await pool.close()

    asyncio.run(asyncio.wait_for(scenario(), 110))


def test_an_episode_whose_process_is_killed_leaves_no_command() -> None:
    async def scenario() -> None:
        pool = EnvironmentPool(EnvironmentLimits(num_processes=1, step_timeout_seconds=2.0))
        spec = EnvironmentSpec(environment="repository_repair", parameters={"command_seconds": 600.0})
        try:
            episode = await pool.open(spec, 1)
            await episode.reset()
            with pytest.raises(EnvironmentTimedOut):
                await episode.step("```sh\nsleep 1118.25\n```")
            await eventually(lambda: not is_running("1118.25"), "the command ends with its process")
        finally:
            await pool.close()

    asyncio.run(asyncio.wait_for(scenario(), 110))
