"""Training engines behind one port."""
