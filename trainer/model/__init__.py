"""The policy: what engines do with a model before they train it (`preparation.py` has the order)."""
