"""A killed trainer that comes back, against loading its checkpoint and re-training."""
