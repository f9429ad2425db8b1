"""Repositories that are made to look repaired: none of it is rewarded, for what decides is not in their reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.repairing_agents import a_write, submit, the_repair, the_task
from support.sandboxes import is_running

from producers.environments.adapters.repository_repair import RepositoryRepair
from producers.environments.episode import Bounds, Episode
from producers.environments.repair.drawing import original

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from producers.environments.repair.tasks import RepairTask

    Forgery = Callable[[RepairTask], dict[str, str]]

seed = 11
begin = "import atexit, builtins, gc, glob, importlib, json, os, pickle, sys\n"


@pytest.fixture
def episode() -> Iterator[Episode]:
    episode = Episode(RepositoryRepair(command_seconds=30.0), Bounds())
    episode.reset(seed)
    yield episode
    episode.close()


def appended(code: str) -> Forgery:
    """The module with the defect, and more at its end."""

    def files(task: RepairTask) -> dict[str, str]:
        path = f"toolbox/{task.module}.py"
        return {path: f"{task.files[path].decode()}\n\n{begin}{code}\n"}

    return files


def replaced_by(function: str) -> Forgery:
    """Every function of the module is this one, of any arguments."""
    code = f"{function}\nfor _name, _value in list(globals().items()):\n"
    return appended(
        f"{code}    if callable(_value) and getattr(_value, '__module__', '') == __name__:\n"
        "        globals()[_name] = forged"
    )


def written(files: dict[str, str]) -> Forgery:
    """Files beside the module, or in its place; MODULE stands for its name."""
    return lambda task: {
        path.replace("MODULE", task.module): content.replace("MODULE", task.module)
        for path, content in files.items()
    }


always_equal = """
class {name}({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = {base}.__hash__
    def __repr__(self): return "True"
    __str__ = __repr__
    def __reduce__(self): return (bool, (1,))
"""
bases = ("int", "str", "list", "dict", "object")
lying = [
    always_equal.format(name=f"Lying{base.title()}", base=base)
    for base in ("int", "str", "list", "dict", "object")
]

forgeries: dict[str, Forgery] = {
    "a conftest that ends with status 0": written(
        {
            "conftest.py": "import os\ndef pytest_sessionfinish(session): os._exit(0)\n",
            "sitecustomize.py": "import os\nos._exit(0)\n",
            "usercustomize.py": "import os\nos._exit(0)\n",
        }
    ),
    "an exit with status 0": appended("os._exit(0)"),
    "an exit with status 0 in the call": replaced_by("def forged(*a): os._exit(0)"),
    "SystemExit": replaced_by("def forged(*a): raise SystemExit(0)"),
    "a printed summary": appended(
        "print('300 passed in 0.01s')\nprint('OK')\nos.write(1, b'OK')\nos._exit(0)"
    ),
    "a printed verdict": appended(
        'os.write(3, b\'{"passed": 300, "hidden": 300, "reward": 1.0}\\n\' * 400)\nos._exit(0)'
    ),
    "answers to every call, written to every open file": appended(
        "for n in range(64):\n    try: os.write(n, b'{\"value\": true}\\n' * 272)\n    except OSError: pass\n"
        "os._exit(0)"
    ),
    "a runner of its own": written(
        {
            "unittest.py": "def main(*a, **k): print('OK')\n",
            "pytest.py": "def main(*a, **k): return 0\n",
            "json.py": "def load(f): return {'calls': [], 'most_lines': None}\ndef dumps(v): return 'true'\n",
            "importlib.py": "def import_module(name): raise SystemExit(0)\n",
        }
    ),
    "tests that pass": written({"tests/test_MODULE.py": "import unittest\n"}),
    "an object that equals everything": replaced_by(f"{lying[4]}\ndef forged(*a): return LyingObject()"),
    "a number that equals everything": replaced_by(f"{lying[0]}\ndef forged(*a): return LyingInt(7)"),
    "a text that equals everything": replaced_by(f"{lying[1]}\ndef forged(*a): return LyingStr('x')"),
    "a list and a mapping that equal everything": replaced_by(
        f"{lying[2]}{lying[3]}\ndef forged(*a): return LyingList() if a else LyingDict()"
    ),
    "what unpickling would run": replaced_by(
        "class Bomb:\n    def __reduce__(self): return (print, ('repaired',))\n"
        "def forged(*a): return pickle.dumps(Bomb()).decode('latin-1')"
    ),
    "a pickle in place of an answer": appended("os.write(3, pickle.dumps({'value': True}))\nos._exit(0)"),
    "json that says what is wanted": replaced_by(
        "json.dumps = lambda value, **k: '{\"value\": true}'\ndef forged(*a): return None"
    ),
    "json that reads its own cases": replaced_by(
        "json.load = json.loads = lambda *a, **k: {'calls': []}\ndef forged(*a): return None"
    ),
    "builtins of its own": appended(
        "builtins.print = lambda *a, **k: os.write(3, b'{\"value\": true}\\n')\n"
        "builtins.isinstance = lambda *a: True\nbuiltins.BaseException = type('Never', (Exception,), {})"
    ),
    "expected values looked for in memory": replaced_by(
        "def forged(*a):\n    found = [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o]\n"
        "    return found[0]['expected']"
    ),
    "expected values looked for in files": replaced_by(
        "def forged(*a):\n    for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline') + "
        "glob.glob('/box/**', recursive=True) + glob.glob('/tmp/**', recursive=True):\n"
        "        try: text = open(path, 'rb').read()\n        except OSError: continue\n"
        "        if b'expected' in text: return json.loads(text[text.index(b'expected') + 10:])"
    ),
    "frames of the caller": replaced_by(
        "def forged(*a):\n    frame = sys._getframe(1)\n    while frame:\n"
        "        if 'expected' in frame.f_locals: return frame.f_locals['expected']\n        frame = frame.f_back"
    ),
    "output after the end": appended(
        "atexit.register(lambda: os.write(3, b'{\"value\": true}\\n' * 300))\nraise ValueError"
    ),
    "a process that answers in its place": appended(
        "if os.fork() == 0:\n    os.setsid()\n    os.write(3, b'{\"value\": true}\\n' * 272)\n    os._exit(0)\n"
        "os._exit(0)"
    ),
    "the server of the sandbox killed": appended("os.kill(2, 9)"),
    "the server of the sandbox spoken to": appended(
        "import socket\nfor n in range(64):\n    try: socket.socket(fileno=os.dup(n)).send(b'{\"exit_status\": 0}')\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "an answer that does not end": replaced_by("def forged(*a):\n    while True: os.write(3, b'[' * 65536)"),
    "a module that makes itself from its own tests": written(
        {
            "toolbox/__init__.py": "import sys, types\n"
            "fake = types.ModuleType('toolbox.MODULE')\nfake.__getattr__ = lambda name: lambda *a: True\n"
            "sys.modules['toolbox.MODULE'] = fake\n",
        }
    ),
    "numbers that are no numbers": replaced_by(
        "def forged(*a): return [float('nan'), 10 ** 5000, float('inf')]"
    ),
}


@pytest.mark.parametrize("forgery", list(forgeries.values()), ids=list(forgeries))
def test_a_repository_that_pretends_earns_nothing(episode: Episode, forgery: Forgery) -> None:
    for path, content in forgery(the_task(seed)).items():
        compile(content, path, "exec")  # it has to pretend, and not to be broken
        assert episode.step(a_write(path, content)).observation.text.startswith(path)
    result = episode.step(submit)
    assert result.reward == 0.0
    assert result.observation.info["passed"] < result.observation.info["hidden"]


def test_a_daemon_that_outlives_its_command_would_wait_for_the_judgement_in_vain(episode: Episode) -> None:
    daemon = (
        'setsid sh -c \'while :; do for p in /proc/[0-9]*; do echo "{\\"value\\": true}" > $p/fd/1; done; done\' &\n'
        "setsid sleep 1119.25 & nohup sleep 1119.25 >/dev/null 2>&1 &"
    )
    episode.step(f"```sh\n{daemon}\n```")
    assert not is_running("1119.25")
    assert "1119" not in episode.step("```sh\ncat /proc/[0-9]*/cmdline\n```").observation.text
    assert episode.step(submit).reward == 0.0


def test_what_a_command_leaves_outside_of_the_work_directory_is_not_there_at_the_judgement(
    episode: Episode,
) -> None:
    """Where a module could be put that is imported before the repository's own."""
    text = episode.step(
        "```sh\ntouch $(python3 -c 'import json; print(json.__file__)')\n"
        "mkdir -p /tmp/x /dev/shm/x .local/lib/python3.11/site-packages\n"
        "echo 'import os; os._exit(0)' | tee /tmp/x/a.py /dev/shm/x/a.py usercustomize.py "
        ".local/lib/python3.11/site-packages/usercustomize.py\n```"
    ).observation.text
    assert "Read-only file system" in text or "Permission denied" in text
    episode.step(the_repair(the_task(seed)))
    # The repair is right, and nothing of the rest has an effect on it.
    assert episode.step(submit).reward == 1.0


def test_arguments_that_the_judgement_gives_cannot_be_kept_for_another_episode(episode: Episode) -> None:
    spying = appended(
        "for path in ('/tmp/seen', '/dev/shm/seen', '/box/seen'):\n"
        "    try: open(path, 'w').write(str(sys._getframe(1).f_globals.get('request')))\n"
        "    except Exception: pass"
    )
    for path, content in spying(the_task(seed)).items():
        episode.step(a_write(path, content))
    episode.step(submit)
    episode.reset(seed)
    text = episode.step("```sh\ncat /tmp/seen /dev/shm/seen seen\n```").observation.text
    assert text.count("No such file") == 3


def test_the_original_itself_is_rewarded_whatever_else_lies_beside_it(episode: Episode) -> None:
    """The forgeries fail by what they are, and not because any change of files would."""
    module = the_task(seed).module
    episode.step(a_write(f"toolbox/{module}.py", original(module)))
    for path in ("conftest.py", "unittest.py", "notes.txt"):
        episode.step(a_write(path, "x = 1"))
    assert episode.step(submit).reward == 1.0
