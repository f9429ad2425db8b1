"""The trainer's side of the ledger: its records, and their transaction."""
