"""The script that writes digests into infra/.env, with a stand-in for the command that asks a registry."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

infra = Path(__file__).parents[2] / "infra"
digest = f"sha256:{'a' * 64}"


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of infra/.env. The stand-in knows every tag but `unknown`."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        f"#!/bin/sh\ncase $* in *:unknown) exit 1;; *@*) exit 2;; *imagetools*) echo {digest};; *) exit 3;; esac\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    copy = tmp_path / "images"
    copy.write_text((infra / ".env").read_text())
    copy.chmod(0o640)
    return copy


def pinned(images: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(infra / "pin-images.sh"), str(images)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_every_image_gets_the_digest_of_its_tag_and_another_one_the_next_time(images: Path) -> None:
    before = images.read_text().splitlines()
    images.write_text(images.read_text().replace("4.3.1", f"4.3.1@sha256:{'b' * 64}"))

    assert pinned(images).returncode == 0

    assert images.read_text().splitlines() == [
        line if line.startswith("#") else f"{line}@{digest}" for line in before
    ]
    assert images.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("EXTRA_IMAGE=repository:unknown", "says anything of repository:unknown"),
        ("EXTRA_IMAGE", "is not NAME=repository:tag"),
    ],
)
def test_nothing_is_written_where_one_image_has_no_digest(images: Path, line: str, said: str) -> None:
    images.write_text(f"{images.read_text()}{line}\n")
    before = images.read_text()

    ended = pinned(images)

    assert ended.returncode == 1
    assert said in ended.stderr
    assert images.read_text() == before
    assert [path.name for path in images.parent.iterdir() if path.name.startswith("images.")] == []
