"""Kills, pauses, full disks and second processes in real runs; nothing is lost, nothing is trained twice."""
