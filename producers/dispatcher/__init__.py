"""The dispatcher: turns prompts into tasks, grants and cancels, and keeps its state a function of the log."""
