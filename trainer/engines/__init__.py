"""Training engines behind one port: DeepSpeed, PyTorch alone, a simulated one; `multi_rank/` for several ranks."""
