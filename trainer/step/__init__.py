"""How a step is trained.

`training_step.py` is the whole of it: one function whose lines are the stages. Each stage has its file:

    before the engine, where trainer and redo make a batch
        batch.py            groups of samples -> a training batch; sequences.py: which of its rows are one sample
        advantages.py       rewards -> advantages, the formulas
        planning.py         which samples an optimizer step, a rank and a forward pass take together; packing.py: rows
    training_step.py        the stages from here on, on every engine
        kl_rewards.py       rewards less their divergence from the reference, and advantages from that
        critic.py           advantages of single tokens from a value head
        old_logprobs.py     log-probabilities before the step ("old", "proximal") and of the reference
        minibatches.py      what each optimizer step works on
        schedule.py         its learning rate
        gradients.py        forward pass, loss, backward pass
            collation.py        samples -> tensors
            forward.py          asking the policy
            algorithms.py       `algorithm.type` -> which loss: masks, divergence, entropy, values
            losses/policy.py    the loss of PPO, GRPO, decoupled PPO, CISPO, TOPR ...; losses/ has the others
            losses/aggregation.py   token losses -> minibatch loss
        optimizer.py        AdamW
        gathering.py        what ranks tell each other
        off_policy.py       statistics of the step
    ports.py                what goes in and out, and what the step needs of an engine

Nothing here knows an engine, a model's class, or a broker.
"""
