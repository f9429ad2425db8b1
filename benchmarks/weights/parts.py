"""The parts of the experiment by name, with the question of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

parts: Mapping[str, str] = {
    "patches": "how small a patch of real bfloat16 updates is, what it takes, and whether every bit comes back",
    "beside": "how long publishing holds training up, beside the next step and inside its own",
}
