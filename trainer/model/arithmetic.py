"""What the bits of a training step depend on besides its input: which instructions the libraries compute with.

PyTorch, oneDNN and MKL choose their kernels by the processor. Another choice adds in another order, and weights differ
in their last bits. `pin_instructions` takes the choice away for the whole process; `arithmetic_facts` says what was
chosen, for genesis. Both are about CPUs; on a GPU its model, driver and CUDA decide.

MKL's reproducibility mode is `COMPATIBLE` at every pinned level: its faster modes are refused on processors that are
not Intel's, without a word, and give other bits there (docs/replay.md has the measurement).
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rollog.kernel.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollog.settings.training import Reproducible

processor_facts = frozenset({"processor", "instruction sets"})
"""Facts that decide nothing where instructions are pinned: any processor that has the level gives the same bits."""

pinned_fact = "instructions pinned to"
"""Name of the fact that says `trainer.reproducible`."""

_no_mkl = "no MKL"
_mkl_branch = 1
"""MKL_CBWR_BRANCH: asks for the branch in force, without its options."""
_mkl_branches: Mapping[int, str] = {
    1: "by processor",
    2: "by processor",
    3: "COMPATIBLE",
    8: "SSE4_2",
    9: "AVX",
    10: "AVX2",
    12: "AVX512",
}
"""Names of MKL's reproducibility branches (mkl_types.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """One pinned level: the capability that PyTorch then reports, the variables that pin it, what it asks for."""

    torch_capability: str
    variables: Mapping[str, str]
    needs: tuple[str, ...]


_levels: Mapping[str, _Level] = {
    "avx2": _Level(
        torch_capability="AVX2",
        variables={
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_CBWR": "COMPATIBLE",
        },
        needs=("avx2", "fma3"),
    ),
    "baseline": _Level(
        torch_capability="DEFAULT",
        variables={
            "ATEN_CPU_CAPABILITY": "default",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_CBWR": "COMPATIBLE",
        },
        needs=(),
    ),
}


def pin_instructions(level: Reproducible) -> None:
    """Have this process compute with the instructions of `level` alone; `machine` leaves the choice to the libraries.

    Call it before anything is computed: the libraries look once. Raises EngineError where the processor lacks the
    level, or where the libraries have chosen already.
    """
    if level == "machine":
        return
    wanted = _levels[level]
    missing = [name for name in wanted.needs if not _capabilities().get(name)]
    # PyTorch itself does not look: told to use what is not there, it dies of an illegal instruction.
    if missing or platform.machine() != "x86_64":
        raise EngineError(
            f"trainer.reproducible = {level!r} needs a processor with {', '.join(wanted.needs) or 'x86-64'}; this one "
            f"({_processor()}) lacks {', '.join(missing) or 'it'}: a run keeps its level, so train it elsewhere, or "
            "begin a new run with trainer.reproducible = 'baseline'"
        )
    os.environ.update(wanted.variables)
    chosen = (torch.backends.cpu.get_cpu_capability(), _mkl_code_path())
    if chosen[1] == _no_mkl:
        raise EngineError(
            f"trainer.reproducible = {level!r} needs a build of PyTorch with MKL, whose code it pins; this has none: "
            "use the locked requirements, or trainer.reproducible = 'machine'"
        )
    if chosen != (wanted.torch_capability, wanted.variables["MKL_CBWR"]):
        raise EngineError(
            f"trainer.reproducible = {level!r} comes too late: this process computes with torch {chosen[0]} and MKL "
            f"{chosen[1]} already; start the trainer in a process of its own"
        )


def arithmetic_facts(device: torch.device, level: Reproducible) -> dict[str, str]:
    """What results depend on besides versions, by name: processor or GPU, instructions chosen, threads, builds.

    Call it after `pin_instructions`: it has the libraries choose, where they have not yet.
    """
    facts = {
        pinned_fact: level,
        "processor": _processor(),
        "instruction sets": " ".join(_instruction_sets()) or "none beyond x86-64",
        "torch instructions": torch.backends.cpu.get_cpu_capability(),
        "torch build": str(torch.version.git_version)[:12],
        "MKL code": _mkl_code_path(),
        "oneDNN limit": os.environ.get("ONEDNN_MAX_CPU_ISA", "by processor"),
        "threads": str(torch.get_num_threads()),
        **_builds(),
    }
    return facts | _gpu_facts(device) if device.type == "cuda" else facts


def _processor() -> str:
    """Vendor and family, as the kernel names them where it does."""
    fields: dict[str, str] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    if "vendor_id" not in fields:
        return str(_capabilities().get("cpu_name") or platform.processor() or platform.machine())
    return f"{fields['vendor_id']} family {fields.get('cpu family', 'unknown')}"


@cache
def _capabilities() -> dict[str, Any]:
    return dict(torch.cpu.get_capabilities())


def _instruction_sets() -> list[str]:
    """Those of the processor that kernels are chosen by."""
    chosen_by = ("avx", "fma", "f16c", "amx")
    return sorted(name for name, has in _capabilities().items() if has is True and name.startswith(chosen_by))


def _mkl_code_path() -> str:
    """The reproducibility branch that MKL is in; with `by processor` its kernels are chosen by vendor and model.

    MKL has no public function for it in this build of PyTorch, so its own one is called.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        branch = int(ctypes.CDLL(str(library)).mkl_serv_cbwr_get(_mkl_branch))
    except (OSError, AttributeError):
        return _no_mkl
    return _mkl_branches.get(branch, f"branch {branch}")


def _builds() -> dict[str, str]:
    """Versions of MKL and oneDNN, as PyTorch was built with them."""
    builds = {}
    for line in torch.__config__.show().splitlines():
        text = line.strip(" -")
        if "Math Kernel Library" in text:
            builds["MKL"] = text.partition("Version ")[2].partition(" for ")[0]
        elif "MKL-DNN" in text:
            builds["oneDNN"] = text.partition("MKL-DNN v")[2].partition(" ")[0]
    return builds


def _gpu_facts(device: torch.device) -> dict[str, str]:
    """Model, compute capability, driver, CUDA and cuDNN."""
    driver = Path("/proc/driver/nvidia/version")
    properties = torch.cuda.get_device_properties(device)
    return {
        "GPU": f"{properties.name} (compute capability {properties.major}.{properties.minor})",
        "GPU driver": driver.read_text(encoding="utf-8").partition("\n")[0] if driver.exists() else "unknown",
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }
