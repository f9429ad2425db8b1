"""The parts of the experiment by name, with the question of each, and what one of them compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

parts: Mapping[str, str] = {
    "patches": "how small a patch of real bfloat16 updates is, what it takes, and whether every bit comes back",
    "adapters": "how small a version of adapters is, and what it takes",
    "beside": "how long publishing holds training up, beside the next step and inside its own",
    "sizes": "what a version takes by size of the model: trainer's thread, write, bytes, memory",
    "reload": "how long a version takes from its notice until it is served, and how long the engine stands still",
    "vllm_reload": "how long vLLM stands still for a version",
    "throttled": "what a slow store costs a run",
    "gpu": "how long publishing holds training up that runs on a GPU",
    "rate": "what publishing costs a run at alpha 0, 1 and 2",
}


class Differences(TypedDict, total=False):
    """Of one way of publishing (`large_runs.Way`)."""

    patches: bool
    beside: bool
    checkpoints: bool


ways_beside: Mapping[str, Differences] = {
    "beside": {},
    "checkpoints": {"checkpoints": True},
    "beside_full": {"patches": False},
    "inside": {"beside": False},
    "inside_full": {"beside": False, "patches": False},
    "checkpoints_inside": {"beside": False, "checkpoints": True},
}
"""Ways of publishing by name, each with how it differs from patches beside the next step without checkpoints."""

parts_of_machines = ("vllm_reload", "gpu")
"""Asked for by name alone: not every machine has what they need."""
