"""What deaths cost in turns, counted from the raw records of `tasks`, `turns` and `samples`, without the product.

An attempt that could take over a chain and wrote a turn of its own names in its base what it served again. What of the
chain is not in there was made again, or the episode went another way.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Fields = dict[str, Any]

_width = 4
"""Bytes of a token id."""


@dataclass(slots=True)
class KeptTurns:
    """What was counted, and every fault in words."""

    num_turns: int = 0
    num_resumed: int = 0
    """Attempts that took something over and wrote a turn of their own."""
    num_served_again: int = 0
    num_made_again: int = 0
    """Turns that were on the log, could be taken over, and were not."""
    num_compared: int = 0
    """Turns of finished samples that were looked up in the log."""
    faults: list[str] = field(default_factory=list)


def kept_turns(tasks: Iterable[Fields], turns: Iterable[Fields], samples: Iterable[Fields]) -> KeptTurns:
    """Count, and compare every finished sample with the turns of its attempt, token by token."""
    counted = KeptTurns()
    own: dict[str, dict[int, Fields]] = defaultdict(dict)
    attempts: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for turn in turns:
        own[turn["task_id"]].setdefault(turn["number"], turn)
        attempts[turn["group_id"], turn["replica"]][turn["attempt"]] = turn["task_id"]
        counted.num_turns += 1
    chains = {task_id: _chain(task_id, own) for task_id in own}
    for task in tasks:
        _count_attempt(counted, task, own, attempts, chains)
    for sample in samples:
        if sample["status"] == "finished":
            _compare(counted, sample, chains)
    return counted


def _chain(task_id: str, own: Mapping[str, dict[int, Fields]]) -> list[Fields]:
    turns = own.get(task_id, {})
    base = next(iter(turns.values()))["base"] if turns else None
    before = _chain(base["task_id"], own) if base else []
    taken = [before[number] for number in base["numbers"]] if base else []
    while len(taken) in turns:
        taken.append(turns[len(taken)])
    return taken


def _count_attempt(
    counted: KeptTurns,
    task: Fields,
    own: Mapping[str, dict[int, Fields]],
    attempts: Mapping[tuple[int, int], dict[int, str]],
    chains: Mapping[str, list[Fields]],
) -> None:
    earliest = task.get("resume_attempt")
    wrote = own.get(task["task_id"])
    if earliest is None or not wrote:
        return
    of_replica = attempts[task["group_id"], task["replica"]]
    before = [attempt for attempt in of_replica if earliest <= attempt < task["attempt"]]
    if not before:
        return
    base = next(iter(wrote.values()))["base"]
    served = base["numbers"] if base else []
    counted.num_resumed += bool(served)
    counted.num_served_again += len(served)
    # A zombie may have written on after its chain was read; what was acknowledged then is not known here.
    chain = chains[base["task_id"]] if base else chains[of_replica[max(before)]]
    counted.num_made_again += len(chain) - len(served)


def _compare(counted: KeptTurns, sample: Fields, chains: Mapping[str, list[Fields]]) -> None:
    """A finished sample is its attempt's chain: what it took over, then its own. All taken over leaves no own turn."""
    chain = chains.get(sample["task_id"]) or chains.get(sample.get("resumed_from") or "", [])
    sampled = b"".join(_turns_of(sample))
    expected = b"".join(turn["token_ids"] for turn in chain)
    counted.num_compared += len(chain)
    if sampled != expected:
        counted.faults.append(
            f"sample {sample['sample_id']} of task {sample['task_id']}: {len(sampled) // _width} sampled tokens differ "
            f"from the {len(expected) // _width} of its {len(chain)} turns"
        )


def _turns_of(sample: Fields) -> Iterable[bytes]:
    """The ids of a sample's turns, trained or not, one after another; of an episode those that its mask marks."""
    sequences = [sample["token_ids"], *(fork["token_ids"] for fork in sample.get("forks") or ())]
    if sample.get("turns"):
        for turn in sorted(sample["turns"], key=lambda turn: int(turn["number"])):
            yield sequences[turn["sequence"]][_width * turn["start"] : _width * turn["end"]]
        return
    for place, mask in enumerate(sample["loss_mask"]):
        if mask:
            yield sample["token_ids"][_width * place : _width * (place + 1)]
