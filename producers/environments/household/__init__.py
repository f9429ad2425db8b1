"""What the environment `household` is made of: games of text in a house, drawn from a seed.

things.py     rooms, receptacles, objects and lamps       tasks.py      what is asked for, and what is held out
houses.py     a house with its task, from random numbers  commands.py   what a line of text asks for
world.py      what is where, and what commands do to it
"""
