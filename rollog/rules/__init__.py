"""The pure decisions that stages share: no Kafka, no clock, no torch.

Whatever two stages must agree on (freshness, admission, what is filtered, which disposition a sample gets)
stands here once.
"""
