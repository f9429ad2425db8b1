"""Processes that a worker starts for code that is not ours: apart from it, within limits, and gone when it is.

walls.py     what separates one from the worker: its environment, its limits
hosts.py     starting one that runs a module of ours, and the socket to it     start_elsewhere.py  under any interpreter
ending.py    killing one with all that it left behind, and how it ended        error_texts.py  what is told of an error

`walls.py`, `ending.py` and `error_texts.py` run in those processes, too, under interpreters that have nothing of ours
but `producers`: they need Python 3.10 and import only the standard library.
"""

from __future__ import annotations
