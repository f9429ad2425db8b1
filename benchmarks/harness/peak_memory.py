"""How much memory this process has, and has had."""

from pathlib import Path


def peak_bytes() -> int:
    """The most memory this process has had resident. A program's own, where getrusage would give its starter's too."""
    return _status_bytes("VmHWM")


def resident_bytes() -> int:
    """Memory that this process has resident now."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
