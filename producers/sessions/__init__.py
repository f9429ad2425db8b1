"""Sessions of agents: what the policy was asked and said, recorded as token ids, and the endpoint that serves it."""
