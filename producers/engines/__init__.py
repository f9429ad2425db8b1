"""Inference engines behind one port (`producers.engines.ports`)."""

from __future__ import annotations
