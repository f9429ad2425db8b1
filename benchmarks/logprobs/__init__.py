"""What log-probabilities in chunks of tokens cost in time, against logits of all tokens at once."""
