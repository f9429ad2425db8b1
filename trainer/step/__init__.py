"""How a step is trained."""
