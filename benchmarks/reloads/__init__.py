"""What a new version costs a run whose workers fetch it while they generate: slots, freshness, step time.

variants.py   how long a fetch takes, in steps, at which alpha; beside it workers that stand still in a fetch
measure.py    makes the runs, on a real broker with a simulated engine, and says what they amount to
"""
