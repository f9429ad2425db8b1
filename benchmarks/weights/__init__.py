"""What it takes to move the weights of a version: bytes and seconds, beside what the machine needs at least."""
