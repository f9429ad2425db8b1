"""Environments by name. Each file is imported only where its environment is made, and imports its own package alone.

guess_number.py   a number to be guessed              nim.py                 two seats take from heaps
reasoning_gym_items.py   tasks of one turn            gymnasium_text.py      gymnasium's, by texts for what they count
textarena_games.py       games of one or more seats   textworld_games.py     worlds of text, made from the seed
openenv_sessions.py      servers that speak OpenEnv   repository_repair.py   a repository with a planted defect
household.py      games of text in a house
private_random.py        global random numbers, one episode each             folded_seeds.py   seeds of fewer bits
"""
