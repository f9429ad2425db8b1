"""Makes the files of the demo, once: model directory, training prompts, held-out prompts.

They lie in a directory named by a hash of everything that determines their bytes, so a change of the code, the
settings, the seed or a library makes new ones beside the old. Files appear whole or not at all: they are
built in a temporary directory that is renamed into place, under a lock that other processes wait for. Files that
are there already are found without importing torch.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollog.demo import sums
from rollog.demo.countdown import problems, row
from rollog.demo.settings import WarmStartSettings
from rollog.kernel.errors import DataError
from rollog.kernel.file_lock import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

warm_start_seed = 0
"""Seed of the demo's start; runs differ by `run.seed` and share it."""

_shared_sources = ("model.py", "warm_start.py", "prepare.py", "word_models.py", "word_task.py")
_libraries = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFiles:
    """Paths of what the demo trains and is evaluated on."""

    model: Path
    """Model directory with tokenizer."""
    train: Path
    """JSONL with prompt, numbers, target and id."""
    held_out: Path
    """The same, of problems that neither warm start nor training sees."""


def prepare(
    cache_dir: Path,
    seed: int = warm_start_seed,
    on_progress: Callable[[float], None] | None = None,
    settings: WarmStartSettings | None = None,
) -> DemoFiles:
    """The demo's files, made if they are not in the cache; `on_progress` is told the finished fraction.

    Raises DataError where the cache directory cannot be written.
    """
    chosen = settings or WarmStartSettings()
    place = cache_dir / f"countdown-{_key('countdown.py', seed, chosen)}"

    def fill(building: Path) -> None:
        files = _files(building)
        _write_rows(files.train, held_out=False)
        _write_rows(files.held_out, held_out=True)
        _write_model(files.model, "countdown", seed, chosen, on_progress)

    _make_once(place, fill)
    return _files(place)


def made_for(environment: str, parameters: Mapping[str, Any]) -> str | None:
    """The task whose model plays this environment, or none."""
    if environment == "rollog.demo.guessing:Guessing":
        return "guessing"
    return "sums" if environment == "reasoning_gym" and sums.are_asked(parameters) else None


def prepare_model(
    cache_dir: Path,
    task: str,
    seed: int = warm_start_seed,
    on_progress: Callable[[float], None] | None = None,
    settings: WarmStartSettings | None = None,
) -> Path:
    """The model directory of a task that `made_for` names, made if it is not in the cache. Raises DataError."""
    chosen = settings or WarmStartSettings()
    place = cache_dir / f"{task}-{_key(f'{task}.py', seed, chosen)}"
    _make_once(place, lambda building: _write_model(building / "model", task, seed, chosen, on_progress))
    return place / "model"


def _make_once(place: Path, fill: Callable[[Path], None]) -> None:
    """Fill a temporary directory and rename it, unless another process has done so."""
    cache_dir = place.parent
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with locked(cache_dir / f"{place.name}.lock"):
            if place.is_dir():
                return
            building = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=cache_dir))
            try:
                fill(building)
                building.chmod(0o755)
                building.rename(place)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"the demo's model cannot be written to {cache_dir}: {error}; choose another place with --home"
        ) from error


def _files(place: Path) -> DemoFiles:
    return DemoFiles(model=place / "model", train=place / "train.jsonl", held_out=place / "held_out.jsonl")


def _key(task_source: str, seed: int, settings: WarmStartSettings) -> str:
    sources = (task_source, *_shared_sources)
    determining = {
        "seed": seed,
        "settings": asdict(settings),
        "sources": {name: (Path(__file__).parent / name).read_text(encoding="utf-8") for name in sources},
        "libraries": {name: metadata.version(name) for name in _libraries},
        "python": sys.version_info[:2],
        "machine": platform.machine(),
    }
    return hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()[:16]


def _write_model(
    directory: Path,
    task_name: str,
    seed: int,
    settings: WarmStartSettings,
    on_progress: Callable[[float], None] | None,
) -> None:
    from rollog.demo.model import save_tokenizer  # noqa: PLC0415  torch is needed only here
    from rollog.demo.warm_start import train  # noqa: PLC0415  the same
    from rollog.demo.word_models import save_model  # noqa: PLC0415  the same
    from rollog.demo.word_task import tasks  # noqa: PLC0415  the same

    task = tasks[task_name]
    directory.mkdir()
    save_model(train(seed, settings, on_progress, task), directory)
    save_tokenizer(directory, task)


def _write_rows(path: Path, *, held_out: bool) -> None:
    lines = (json.dumps(row(problem)) + "\n" for problem in problems(held_out=held_out))
    path.write_text("".join(lines), encoding="utf-8")
