"""The page and the notebook on rollog from Python: every piece of code in them is run, on a real broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.terminal import sigint_heeded
from support.threaded_run import make_model, make_prompts, small_settings

if TYPE_CHECKING:
    from support.session_kafka import SessionKafka

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.timeout(300)]

root = Path(__file__).parents[2]
page = root / "docs" / "python.md"
notebook = root / "examples" / "from_python.ipynb"

run_pieces = """
import json, pathlib, sys
for place, code in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    print(f"[{place}]", flush=True)
    exec(compile(code, place, "exec"), {"__name__": "__main__"} if sys.argv[2] == "apart" else globals())
"""


def told(
    *command: str, cwd: Path, home: Path, cache_directory: Path, environment: dict[str, str] | None = None
) -> str:
    """What a command says, in a state directory whose only content is Kafka's jars."""
    (home / "cache").mkdir(parents=True, exist_ok=True)
    if not (home / "cache" / "maven").exists():
        (home / "cache" / "maven").symlink_to(cache_directory.resolve() / "maven")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(root), "ROLLOG_HOME": str(home), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def pieces(*, with_files: bool) -> list[tuple[str, str]]:
    """The code blocks of the page, each with its file, or with its line in the page."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python(?: file=(\S+))?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [
        (block[1] or f"python.md, line {text[: block.start()].count(chr(10)) + 1}", block[2])
        for block in found
        if (block[1] is not None) == with_files
    ]


def test_every_example_of_the_page_runs(
    embedded_kafka: SessionKafka, tmp_path: Path, cache_directory: Path
) -> None:
    environment = {
        "ROLLOG_BROKER__BOOTSTRAP_SERVERS": embedded_kafka.address,
        "ROLLOG_RUN__PREFIX": f"test-{uuid.uuid4().hex[:8]}",
    }
    home = tmp_path / "home"
    make_model(tmp_path / "model")
    make_prompts(tmp_path / "prompts.jsonl")
    for name, code in pieces(with_files=True):
        (tmp_path / name).write_text(code)
    (tmp_path / "pieces.json").write_text(json.dumps(pieces(with_files=False)))

    def run(*command: str) -> str:
        return told(
            *command, cwd=tmp_path, home=home, cache_directory=cache_directory, environment=environment
        )

    started = run("train.py")
    assert re.findall(r"^step (\d): reward 0\.\d+, lag [01],", started, flags=re.MULTILINE) == ["1", "2", "3"]
    assert "over: True, 3 steps, figures in" in started
    run("-m", "rollog.cli.main", "export", "first", "run.zip")
    said = run("-c", run_pieces, "pieces.json", "apart")
    assert "no-such-run" in said
    assert re.search(r"^trained 3 [0-9a-f]{64}$", said, flags=re.MULTILINE)
    assert "\nTrue\n" in said
    assert len(list(tmp_path.glob("trained/*.safetensors"))) > 0
    assert (tmp_path / "samples.parquet").stat().st_size > 0


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    embedded_kafka: SessionKafka, tmp_path: Path, cache_directory: Path
) -> None:
    del embedded_kafka  # whose start has fetched the jars: the notebook starts a broker of its own
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    code = [
        (f"cell {at}", "".join(cell["source"]))
        for at, cell in enumerate(cells)
        if cell["cell_type"] == "code"
    ]
    (tmp_path / "cells.json").write_text(json.dumps(code))
    (tmp_path / "cells.py").write_text(run_pieces)
    shutil.copy(root / "examples" / "rewards.py", tmp_path)
    # In place of the demo's model, which takes a minute to make.
    environment = {
        "ROLLOG_MODEL__PATH": str(make_model(tmp_path / "model")),
        "ROLLOG_DATA__TRAIN": str(make_prompts(tmp_path / "prompts.jsonl")),
    }
    said = told(
        *("cells.py", "cells.json", "together"),
        cwd=tmp_path,
        home=tmp_path / "home",
        cache_directory=cache_directory,
        environment=environment,
    )
    assert re.findall(r"^step (\d): reward", said, flags=re.MULTILINE) == ["1", "2", "3", "4"]
    assert re.search(r"^trained +32$", said, flags=re.MULTILINE)
    assert "the audit finds nothing off" in said
    assert len(list(tmp_path.glob("*-model/*.safetensors"))) > 0


endings = """
import json, os, pathlib, signal, sys
import rollog
from support.loop_rewards import even_words

def interrupt(step):
    os.kill(os.getpid(), signal.SIGINT)

def fail(step):
    raise ValueError("enough")

def children():
    mine = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (place / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                mine.append(place.name)
        except OSError:
            pass  # it has ended
    return mine

settings = json.loads(pathlib.Path("settings.json").read_text())
stopped = rollog.up(settings, reward=even_words, on_step=interrupt)
print("stopped", stopped.is_over, stopped.num_steps > 0, children())
with stopped.open() as run:
    print("kept", len(list(run.steps())) >= stopped.num_steps)
try:
    rollog.up(settings, reward=even_words, on_step=fail)
except ValueError as error:
    print("raised", error, children(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.slow
def test_an_interrupt_and_an_error_of_the_listener_end_every_process(
    embedded_kafka: SessionKafka, tmp_path: Path, cache_directory: Path
) -> None:
    settings = small_settings(tmp_path, "unnamed", run={"num_steps": 2000})
    sections = settings.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    del sections["run"]["name"], sections["weights"], sections["reward"]["function"]
    sections["broker"]["bootstrap_servers"] = embedded_kafka.address
    (tmp_path / "settings.json").write_text(json.dumps(sections))
    with sigint_heeded():
        said = told(
            "-c",
            endings,
            cwd=tmp_path,
            home=tmp_path / "home",
            cache_directory=cache_directory,
            environment={"PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"},
        )
    assert said.splitlines()[-3:] == ["stopped False True []", "kept True", "raised enough [] True"]
