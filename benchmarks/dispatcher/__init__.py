"""What a task costs the dispatcher, and what share of what the cores allow 256 workers get through it."""
