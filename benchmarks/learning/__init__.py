"""Every algorithm under lag."""
