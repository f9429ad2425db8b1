"""Kills in the middle of real runs; nothing is lost, nothing is trained twice."""
