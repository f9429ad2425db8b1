"""Stages that produce records: the dispatcher makes tasks, rollout workers make samples."""

from __future__ import annotations
