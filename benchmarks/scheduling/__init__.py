"""Queue scheduling, replication, redundancy and asynchrony against their ideals."""
