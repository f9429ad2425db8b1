"""What it takes to compute all log-probabilities of a run again, and whether an honest run raises an alarm."""
