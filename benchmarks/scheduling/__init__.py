"""Queue scheduling, replication, redundancy and asynchrony against their ideals.

ideal.py            which ideal a variant is measured against
ideal_slots.py      workers with slots in discrete events, without any overhead: one batch
ideal_training.py   the whole protocol in discrete events, without any overhead: training steps
evicting_model.py   the rule of ROLL Flash in the same discrete events; eviction.py: beside rollog's
parts.py            the parts by name, which `--only` takes
measure.py          makes the runs, on a real broker with a simulated engine; figures.py: what they amount to
"""
