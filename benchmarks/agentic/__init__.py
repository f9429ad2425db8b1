"""Environment-level asynchrony, redundant environments, and both in training, against their ideals.

draws.py               how long environments take, which are slow and which hang
ideal.py               lock-step, episodes and training in discrete events, without the product's rules or overheads
variants.py            what is compared; the parts by name, which `--only` takes
timed_environment.py   an environment that takes its time, in processes of the product's pool
lock_step.py           the same pool with a barrier after every step: the baseline
episode_run.py         one run: real dispatcher, worker and trainer on a real broker, with a simulated engine
measure.py             makes the runs; figures.py: what they amount to
"""
