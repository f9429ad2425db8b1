"""The Helm chart as helm renders it, with the tools of `make tools`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rollog.cli.main import cli

root = Path(__file__).parents[2]
chart = root / "infra" / "helm" / "rollog"
values_files = sorted((root / "infra" / "helm" / "values").glob("*.yaml"))
kubernetes_version = "1.31"
release = "r"

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Path of a tool; without it tests are skipped, and fail where ROLLOG_REQUIRE_TOOLS is set."""
    built = root / "build" / "tools" / name
    found = str(built) if built.exists() else shutil.which(name)
    if found is None:
        problem = f"{name} is not there: say `make tools`"
        if os.environ.get("ROLLOG_REQUIRE_TOOLS"):
            pytest.fail(problem)
        pytest.skip(problem)
    return found


def call(name: str, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """One call of a tool."""
    return subprocess.run(
        [tool(name), *words], input=text, capture_output=True, text=True, timeout=120, check=False
    )


def template(*words: str) -> subprocess.CompletedProcess[str]:
    """`helm template` of the chart; errors are the caller's to look at."""
    version = ("--kube-version", f"{kubernetes_version}.0")
    return call("helm", "template", release, str(chart), *version, "--namespace", "runs", *words)


def render(*words: str) -> list[Manifest]:
    """Every manifest. AssertionError when helm fails."""
    ended = template(*words)
    assert ended.returncode == 0, ended.stderr
    return [manifest for manifest in yaml.safe_load_all(ended.stdout) if manifest]


def render_file(values: Path, directory: Path) -> list[Manifest]:
    """The manifests of one of the example values files, with what it says to be given beside it."""
    extra = strimzi_files(directory) if values.stem == "strimzi" else ()
    return render("-f", str(values), *extra)


def strimzi_files(directory: Path) -> tuple[str, ...]:
    """The flags with the resources that rollog prints for the Strimzi operator."""
    users = {"creator": "creator", "dispatcher": "dispatcher", "worker": "rollout", "trainer": "trainer"}
    principals = [
        word
        for role, name in users.items()
        for word in ("--principal", f"{role}=User:{release}-rollog-{name}")
    ]
    common = ("--run", "demo", "--format", "strimzi", "--cluster", "main")
    flags = []
    for name, words in (("topics", ("print", *common)), ("users", ("acls", *common, *principals))):
        printed = CliRunner().invoke(cli, ["topics", *words, "--home", str(directory)])
        assert printed.exit_code == 0, printed.output
        (directory / f"{name}.yaml").write_text(printed.output)
        flags += ["--set-file", f"strimzi.{name}={directory / name}.yaml"]
    return tuple(flags)


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    """By name without the release's."""
    return {
        manifest["metadata"]["name"].removeprefix(f"{release}-rollog-"): manifest
        for manifest in manifests
        if manifest["kind"] == kind
    }


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Pod specifications by component."""
    return {
        manifest["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: manifest["spec"][
            "template"
        ]["spec"]
        for manifest in manifests
        if manifest["kind"] in {"Deployment", "StatefulSet", "Job"}
    }


def environment(pod: Manifest) -> dict[str, str]:
    """Plain variables of the pod's container."""
    (container,) = pod["containers"]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def mounts(pod: Manifest) -> dict[str, Manifest]:
    """Mounts of the pod's container by path."""
    (container,) = pod["containers"]
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}
