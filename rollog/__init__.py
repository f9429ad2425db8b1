"""rollog: asynchronous reinforcement-learning post-training of language models on a durable log."""

from __future__ import annotations

__version__ = "0.2.0"
