"""The decisions behind supervision, without any process in them."""

from __future__ import annotations
