"""A run of the demo whose trainer, worker and broker are killed, as pictures: its curve, and its live view."""
