"""How fast the trainer's engine is, against a bare PyTorch loop."""
