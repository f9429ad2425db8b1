"""Environments: text in, text out, each run apart from the worker so that nothing it does can stop the run.

ports.py     what an environment is                    names.py            which have a name, how others are found
pool.py      processes and the episodes in them        process.py          one of them, seen from the worker
host.py      what runs in it                           messages.py         observations and results as JSON
episode.py   the rules every environment is held to    background_loop.py  where those that are `async def` run
adapters/    environments of other packages, and some of our own
repair/      what the one is made of in which a repository is repaired
household/   rooms, objects and tasks of the games in a house
"""
