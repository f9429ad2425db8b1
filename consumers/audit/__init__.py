"""The audit: what the invariants demand of a run, checked on its topics and its weights store alone.

Nothing here uses the rules by which trainer and dispatcher decide: freshness, quota, verdicts and what may be issued
are worked out again from the definitions. Checks are pure and take records; `auditor` reads the topics, once.
"""
