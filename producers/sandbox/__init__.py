"""A sandbox for code that nobody has read: bubblewrap around it, limits on it, nothing of it left afterwards.

config.py     what a sandbox may see and take   sandbox.py       one command, alone
session.py    several commands, one after another, over the same files
blocking.py   the same for code that is not async
arguments.py  the command line of bubblewrap    system_calls.py  the calls that the kernel refuses
cell.py       one bubblewrap process: start, talk, end
inside.py     the process in it that starts the commands
pipes.py      input and output of a command     process_tree.py  what its processes take
self_test.py  whether the walls hold here       escapes.py       the attempts that it makes
"""
