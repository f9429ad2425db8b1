"""How devices are shared between generating and training, and what alpha brings."""
