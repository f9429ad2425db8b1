"""Agents as programs: a worker starts them, gives them a task and the policy's address, and waits for their end.

ports.py         what a worker needs of agents: an order in, an answer out
given.py         what an agent's function is called with
host.py          the process that imports a function and forks one process for each session
process.py       that process, seen from the worker
commands.py      programs in sandboxes, or without one; forwarder.py takes their calls to the endpoint
choice.py        the agents that the configuration names
"""
