"""Verification: whether the recorded log-probabilities are those of the weights that each segment names.

A model computes them again by prefill; nothing here knows which. `pieces`, `selection`, `order` and `rule` are pure.

pieces.py        what is compared: tokens of one sample under one version
selection.py     which samples are taken: all, one step, a share        reading.py  reads them
order.py         by version, each loaded once, a few steps held at a time
rule.py          when a difference is noise, and when it is not
groups.py        what one worker made under one version, and its figures
verifier.py      loads versions, compares, and looks for the version that fits instead
report.py        the outcome, for a terminal and for programs
"""
