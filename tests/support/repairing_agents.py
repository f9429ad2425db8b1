"""Agents that repair repositories, by the actions that every agent has: what they say, turn by turn."""

from __future__ import annotations

import inspect
import random
import re
from typing import TYPE_CHECKING

from producers.environments.repair import defects
from producers.environments.repair.drawing import original
from producers.environments.repair.draws import draws
from producers.environments.repair.tasks import RepairTask, task_of
from producers.environments.repair.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable


run_the_tests = "```sh\npython3 -m unittest\n```"
submit = "```submit\n```"


def the_task(seed: int, num_modules: int = 3) -> RepairTask:
    """What the environment with default parameters plants for a seed."""
    return task_of(seed, tuple(sorted(draws)), num_modules, Workbench(30.0))


def a_write(path: str, content: str) -> str:
    """The turn that writes a file."""
    return f"I write it.\n```write {path}\n{content.rstrip()}\n```"


def the_repair(task: RepairTask) -> str:
    """The turn that puts the original lines in place of those with the defect."""
    source = original(task.module)
    planted = task.defect.planted(source).splitlines()
    right = source.splitlines()
    last = task.line_number
    first = last
    # Lines above it come along until the place is the only one.
    while "\n".join(planted).count("\n".join(planted[first - 1 : last]) + "\n") != 1:
        first -= 1
    old, new = ("\n".join(lines[first - 1 : last]) for lines in (planted, right))
    return f"Here it is.\n```replace toolbox/{task.module}.py\n{old}\n=====\n{new}\n```"


def knowing(task: RepairTask) -> Callable[[str], str]:
    """Knows the defect from the seed."""
    turns = iter([run_the_tests, the_repair(task), run_the_tests, submit])
    return lambda _seen: next(turns)


_search = """
import importlib, io, pathlib, signal, sys, types, unittest
import places
name = sys.argv[1]
path = pathlib.Path(f"toolbox/{name}.py")
source = path.read_text()
def late(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, late)
def passes(text):
    module = importlib.import_module(f"toolbox.{name}")
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        exec(compile(text, str(path), "exec"), vars(module))
        suite = unittest.defaultTestLoader.loadTestsFromName(f"tests.test_{name}")
        result = unittest.TextTestRunner(io.StringIO(), failfast=True).run(suite)
        return result.wasSuccessful()
    except BaseException:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
for change in places.possible_defects(source):
    text = change.planted(source)
    if passes(text):
        path.write_text(text)
        print("changed", change)
        break
"""


def searching() -> Callable[[str], str]:
    """Knows nothing: sees which module's tests fail, and tries changes of it, one by one, until they pass."""
    turns = [run_the_tests]

    def agent(seen: str) -> str:
        if failing := re.search(r"(?:FAIL|ERROR): \w+ \(tests\.test_(\w+)\.", seen):
            turns.extend(
                [
                    a_write("places.py", inspect.getsource(defects)),
                    a_write("search.py", _search),
                    f"```sh\npython3 search.py {failing[1]}; rm places.py search.py\n```",
                ]
            )
        return turns.pop(0) if turns else submit

    return agent


def at_random(seed: int) -> Callable[[str], str]:
    """Says shell commands and edits drawn at random, and submits after some of them."""
    numbers = random.Random(seed)
    turns_left = numbers.randint(1, 5)

    def agent(seen: str) -> str:
        nonlocal turns_left
        turns_left -= 1
        if turns_left < 0:
            return submit
        paths = re.findall(r"toolbox/\w+\.py", seen) or ["toolbox/days.py", "toolbox/words.py"]
        path = numbers.choice(paths)
        line = numbers.randint(5, 40)
        return numbers.choice(
            [
                f"```sh\nsed -i '{line}s/+/-/' {path}\n```",
                f"```sh\nsed -i '{line}d' toolbox/*.py\n```",
                f"```sh\nsed -i 's/<=/</g; s/min/max/g' {path}\n```",
                f"```sh\nrm -f tests/test_*.py; cat {path}\n```",
                "```sh\ngit checkout . ; ls -R / | head -c 300\n```",
                a_write(path, "def value(*arguments):\n    return 0\n"),
                f"```replace {path}\nreturn result\n=====\nreturn []\n```",
                "I would look at the tests first.",
            ]
        )

    return agent
