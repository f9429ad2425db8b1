"""Jars of Apache Kafka beside the embedded one's: other versions, MirrorMaker 2, a remote tier for tests.

Each set is pinned in `tests/data/kafka_jars/NAME.txt`, one line a jar: coordinate and sha256. Written anew by
`PYTHONPATH=.:tests python -m support.kafka_jars NAME COORDINATES`, with coordinates as jgo takes them.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from pathlib import Path

from rollog.kernel.broker.embedded_jars import Jar, resolve_jars

locks = Path(__file__).resolve().parents[1] / "data" / "kafka_jars"
header = "# coordinate sha256\n"


def locked_jars(name: str) -> list[Jar]:
    """What the lock of that name pins."""
    lines = (locks / f"{name}.txt").read_text().splitlines()
    return [Jar(*line.split()) for line in lines if not line.startswith("#")]


def jars_of(name: str, cache_directory: Path) -> list[Path]:
    """Paths of a locked set. Raises ConfigError where one can be neither found nor downloaded."""
    return resolve_jars(cache_directory, jars=locked_jars(name), version=name)


def lock(name: str, coordinates: str) -> None:
    """Resolve coordinates with what they depend on, and write the lock."""
    import jgo  # noqa: PLC0415 - needed for nothing else

    with tempfile.TemporaryDirectory() as cache:
        jgo.build(coordinates, cache_dir=Path(cache))
        (resolved,) = Path(cache).rglob("jgo.lock.toml")
        write_lock(name, resolved)


def write_lock(name: str, resolved: Path) -> None:
    """Write the lock from what jgo says it resolved."""
    found = tomllib.loads(resolved.read_text())["dependencies"]
    lines = sorted(f"{_coordinate(each)} {each['sha256']}\n" for each in found)
    locks.mkdir(parents=True, exist_ok=True)
    (locks / f"{name}.txt").write_text(header + "".join(lines))


def _coordinate(dependency: dict[str, str]) -> str:
    parts = [dependency[key] for key in ("groupId", "artifactId", "version")]
    return ":".join([*parts, *([dependency["classifier"]] if dependency.get("classifier") else [])])


if __name__ == "__main__":
    lock(sys.argv[1], sys.argv[2])
