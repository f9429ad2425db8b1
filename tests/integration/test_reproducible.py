"""Pinned instructions: the same weights whatever wider instructions a processor has, and a word where they differ.

The slow ones run on processors that qemu-user plays, of another vendor, with AVX2 and without; they need
its program (Debian: apt-get install qemu-user).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_training import make_model

from trainer.model.arithmetic import arithmetic_facts, pinned_fact

pytestmark = pytest.mark.timeout(1200)
root = Path(__file__).parents[2]
has_avx2 = bool(torch.cpu.get_capabilities().get("avx2")) and bool(torch.cpu.get_capabilities().get("fma3"))
levels = ["baseline", *(["avx2"] if has_avx2 else [])]
hostile = {"MKL_CBWR": "AUTO", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
"""What an environment may say of the same libraries; of no effect where a level is pinned."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


def ended(
    model: str, level: str, algorithm: str, *, under: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    packages = Path(torch.__file__).parents[1]
    return subprocess.run(
        [*under, _python(under), "-m", "support.trained_weights", model, level, algorithm],
        check=False,
        capture_output=True,
        text=True,
        timeout=1100,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests", packages))),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **variables,
        },
    )


def trained(model: str, level: str, algorithm: str = "grpo", **others: Any) -> dict[str, Any]:
    process = ended(model, level, algorithm, **others)
    assert process.returncode == 0, process.stderr
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def _python(under: tuple[str, ...]) -> str:
    """The interpreter itself under an emulator, which starts a program and no link to one."""
    return str(Path(sys.executable).resolve()) if under else sys.executable


# A level is two processes that import torch.
@pytest.mark.slow
@pytest.mark.parametrize("level", levels)
def test_a_pinned_run_gives_the_same_weights_whatever_else_the_environment_asks_for(
    model: str, level: str
) -> None:
    plain = trained(model, level)
    pressed = trained(model, level, **hostile)
    assert pressed["weights"] == plain["weights"]
    assert plain["facts"]["MKL code"] == "COMPATIBLE"
    assert plain["facts"]["torch instructions"] == {"baseline": "DEFAULT", "avx2": "AVX2"}[level]


def test_genesis_learns_what_the_libraries_chose() -> None:
    facts = arithmetic_facts(torch.device("cpu"), "machine")
    assert facts[pinned_fact] == "machine"
    assert facts["torch instructions"] == torch.backends.cpu.get_cpu_capability()
    assert facts["processor"]
    assert facts["threads"] == str(torch.get_num_threads())
    assert facts["MKL code"] == "by processor"


def test_a_level_that_the_processor_lacks_is_refused_before_anything_is_computed(model: str) -> None:
    if has_avx2:
        pytest.skip("this processor has every level")
    process = ended(model, "avx2", "grpo")
    assert process.returncode != 0
    assert "needs a processor with avx2, fma3" in process.stderr


def test_pinning_comes_too_late_where_the_libraries_have_chosen() -> None:
    chosen = torch.backends.cpu.get_cpu_capability()
    level = "baseline" if chosen != "DEFAULT" else "avx2"
    script = (
        "import torch, sys\n"
        "torch.ones(8, 8) @ torch.ones(8, 8)\n"
        "from trainer.model.arithmetic import pin_instructions\n"
        "pin_instructions(sys.argv[1])\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, level], check=False, capture_output=True, text=True, timeout=120
    )
    assert process.returncode != 0
    assert "comes too late" in process.stderr or "needs a processor" in process.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-user")
@pytest.mark.parametrize(("processor", "level"), [("Haswell", "avx2"), ("Nehalem", "baseline")])
def test_a_processor_of_another_vendor_gives_the_same_weights(model: str, processor: str, level: str) -> None:
    if level not in levels:
        pytest.skip(f"this processor has no {level} to compare with")
    here = trained(model, level, "topr")
    there = trained(model, level, "topr", under=("qemu-x86_64", "-cpu", processor))
    assert there["weights"] == here["weights"]
    assert there["facts"]["instruction sets"] != here["facts"]["instruction sets"] or processor == "Haswell"
