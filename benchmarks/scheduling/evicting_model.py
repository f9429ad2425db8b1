"""The rule of ROLL Flash (arXiv 2510.11345) in discrete events: a prompt that is too old is evicted and made again.

Pure. Only the benchmark plays it; rollog has another rule. Everything but the rule is that of `ideal_training.py`:
slots, durations, admission, order of a batch, the quota of a fractional alpha.

The version of a prompt is that under which its first rollout began. As soon as a step makes it older than alpha
allows, or as the quota has no place for it, all that it has is thrown away, finished or under way, and its rollouts
queue again at the prompt's old place. Training takes complete prompts, waits for none in particular, protects none.
"""

from __future__ import annotations

import heapq

from benchmarks.scheduling.ideal_training import TrainingModel
from rollog.rules.freshness import is_stale


class EvictingModel(TrainingModel):
    """One run under the rule; see `TrainingModel`."""

    def _judge(self) -> None:
        finished = {number: group.finished for number, group in self._open.items() if group.finished}
        first_versions = {number: min(versions.values()) for number, versions in finished.items()}
        for _, _, number, _, version in self._running:
            first_versions[number] = min(version, first_versions.get(number, version))
        for number, first_version in first_versions.items():
            if is_stale(self._version, first_version, self._alpha):
                self._turn_oldest_stale(number)

    def _turn_oldest_stale(self, number: int) -> None:
        """The whole prompt, where rollog's rule takes the members of the largest lag."""
        self._open[number].finished.clear()
        self._running = [entry for entry in self._running if entry[2] != number]
        others = [wanted for wanted in self._waiting if wanted[0] != number]
        self._waiting = others + [(number, replica) for replica in range(self._run.group_size)]
        heapq.heapify(self._running)
        heapq.heapify(self._waiting)
        self._made_again.add(number)
