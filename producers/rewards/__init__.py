"""Rewards: the user's function, in processes of its own."""
