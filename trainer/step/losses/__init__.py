"""Losses: pure functions of log-probabilities, advantages and masks. `trainer/step/algorithms.py` selects among them.

Shapes, in all modules: B samples of a micro-batch, R response positions (padded on the right).

Names: log pi is of the policy that is trained and carries the gradient; mu is the behaviour log-probability, stored in
the record when the token was drawn and never recomputed; proximal is log pi as it was before the training step;
reference is that of the model the run began with. Neither of the last two ever stands in for mu.

policy.py       PPO and GRPO, decoupled PPO, TIS, CISPO, TOPR, policy gradient
penalties.py    divergence from the reference, entropy      values.py   the value head's loss
ratios.py       probability ratios by token or response     aggregation.py   token losses -> one number
"""
