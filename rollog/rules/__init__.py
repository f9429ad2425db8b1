"""The decisions that stages share: no Kafka, no clock, no torch.

They are pure, but for two that use a broker through its port: `epochs` (who works) and the heartbeats of `role_voice`.

Whatever two stages must agree on is here once: freshness, which members of a group count, what is filtered, when a
replica is exhausted, what the ledger says of a sample. `freshness` also keeps what one stage alone asks, because the
rule for stale samples is one.
"""
