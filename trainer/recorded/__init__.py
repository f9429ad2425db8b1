"""Recorded steps trained again: recovery, replay, counterfactual training. And recorded tokens read again: prefill."""
