"""Recorded steps trained again: recovery, replay, counterfactual training."""
