"""The distribution: our package names are ours alone, and a wheel holds everything that is read at run time."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

root = Path(__file__).parents[2]
packages = ("schemas", "rollog", "producers", "consumers", "trainer")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=root)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--no-compile")
    run(sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(wheel), cwd=folder)
    return folder


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_under(folder: Path, pattern: str) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for package in packages
        for path in (folder / package).rglob(pattern)
    }


def test_no_other_distribution_is_known_for_our_package_names() -> None:
    providers = metadata.packages_distributions()
    assert {name: providers[name] for name in packages if set(providers.get(name, ())) - {"rollog"}} == {}


def test_no_other_distribution_installed_files_under_our_package_names() -> None:
    ours = tuple(f"{name}{ending}" for name in packages for ending in ("/", ".py,", ".so,", ".cpython-"))
    intruders = {
        (distribution.name, line)
        for distribution in metadata.distributions()
        if distribution.name != "rollog"
        for line in (distribution.read_text("RECORD") or "").splitlines()
        if line.startswith(ours)
    }
    assert intruders == set()


def test_a_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(packages)


def test_a_wheel_marks_every_package_as_typed(installed: Path) -> None:
    assert [name for name in packages if not (installed / name / "py.typed").is_file()] == []


def test_a_wheel_holds_every_module_and_every_schema(installed: Path) -> None:
    for pattern in ("*.py", "*.avsc"):
        assert files_under(installed, pattern) == files_under(root, pattern)


def test_the_schemas_of_an_installed_wheel_can_be_read(installed: Path, tmp_path: Path) -> None:
    code = (
        "import schemas\n"
        "from schemas.catalogue import load_catalogue\n"
        "from schemas.codec import decode, encode\n"
        "catalogue = load_catalogue()\n"
        "assert set(catalogue.current) == {record.__name__ for record in schemas.record_types}\n"
        "assert catalogue.releases\n"
        "assert decode(encode(schemas.Fence(epoch=3))) == schemas.Fence(epoch=3)\n"
        "print(schemas.__file__)\n"
    )
    file = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).strip()
    assert Path(file).is_relative_to(installed)
