"""Numbers of bytes as people read them."""

from __future__ import annotations

_units = ("B", "KB", "MB", "GB")
_step = 1000


def readable_bytes(count: float) -> str:
    """`readable_bytes(1_980_000_000)` is "2.0 GB": decimal units, a digit behind the point from GB on."""
    size, unit = float(count), 0
    while size >= _step and unit < len(_units) - 1:
        size, unit = size / _step, unit + 1
    return f"{size:,.1f} {_units[unit]}" if unit == len(_units) - 1 else f"{size:.0f} {_units[unit]}"
