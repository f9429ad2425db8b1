"""The trainer: turns finished samples into policy versions, one transaction per training step.

`startup` takes a run over and returns the trainer of `loop`. `buffer` judges samples and makes batches, `step` trains
one on an engine of `engines` with a model of `model`, `ledger` commits what became of it. `recorded` trains recorded
steps again: for recovery, replay and what-if.
"""
