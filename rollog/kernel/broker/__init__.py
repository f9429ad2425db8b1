"""The log broker: ports, Apache Kafka behind them, an in-memory twin, and the embedded Apache Kafka."""

from __future__ import annotations
