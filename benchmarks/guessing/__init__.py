"""What a small model learns of a game of several turns."""
