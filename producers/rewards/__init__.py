"""Rewards: the user's function, called apart from the worker so that nothing it does can stop the run.

ports.py        what a rollout worker needs         choice.py    which of these the configuration names
pool.py         several processes and their queue   worker.py    one of them: start, calls, time-out, replacement
process.py      what runs in it                     functions.py finding, calling and checking the function
summed.py       the weighted sum of several     library/     ready rewards, by name
in_process.py   the function without a process      shuffled.py  the negative control
code.py         a function of ours: code, in a sandbox, against cases
code_blocks.py  the code in a response              code_cases.py inputs, and what is expected of them
"""
