"""What the data plane costs, against raw kafka-python."""
