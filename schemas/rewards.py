"""Record of the `rewards` topic: the reward of a finished sample that came without one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What a program outside of the run says of one sample, when it has scored it.

    `turn_rewards` has one entry for each turn of the sample, or none. `scorer` says who wrote it, for people.
    """

    sample_id: str
    reward: float
    components: dict[str, float] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] = ()
    scorer: str = ""
