"""Repositories with a planted defect, which an agent repairs in a sandbox; what decides stays outside of it.

toolbox/      the modules that repositories are made of    draws.py      arguments for each of their functions
defects.py    what can be changed in a module's text       drawing.py    what a seed draws: modules, cases, places
tasks.py      a defect that shows, its tests, what is told  workbench.py  running commands and calls in sandboxes
files.py      the work directory, held outside             actions.py    what the agent may do, read from its text
"""
