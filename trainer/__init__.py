"""The trainer: turns finished samples into policy versions, one transaction per training step."""
