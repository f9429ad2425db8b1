"""The rollout worker: tasks in, samples out, weights reloaded in between."""

from __future__ import annotations
