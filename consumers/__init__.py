"""Readers of the log: samples for the trainer, the ledger, evaluations, and the progress of a run."""
