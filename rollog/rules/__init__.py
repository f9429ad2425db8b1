"""The pure decisions that stages share: no Kafka, no clock, no torch.

Whatever two stages must agree on is here once: freshness, which members of a group count, what is filtered, when a
replica is exhausted, what the ledger says of a sample. `freshness` also keeps what one stage alone asks, because the
rule for stale samples is one.
"""
