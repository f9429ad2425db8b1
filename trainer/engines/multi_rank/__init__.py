"""Several ranks: rank 0 calls, the others follow."""
