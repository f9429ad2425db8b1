"""A run as a whole: made, joined, supervised, watched, summed up."""
