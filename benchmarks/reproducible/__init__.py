"""What `trainer.reproducible` costs: a training step at each level that this processor has."""
