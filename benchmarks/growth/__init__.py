"""What the age of a run costs whoever starts on it, or reads it."""
