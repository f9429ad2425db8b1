"""The experiments whose figures are published: one folder each, with its ideal, its runner and its results.

Run one from the root of the repository with `python -m benchmarks.NAME [--seed S] [--json FILE] [--results FILE] ...`;
`python -m benchmarks` lists them with how long each takes. `--json` writes a list of objects with name, value, unit,
target, ideal and higher_is_better. What several experiments share is in `benchmarks.harness`. None of this is part of
the installed package.
"""
