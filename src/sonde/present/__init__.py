"""Presenting: how people get to see views. `server.py` serves the page and the API behind it.

Runs are read in worker processes (`worker.py`), which may die without harm; the server itself
never opens a file of a run. `guard.py` decides who may ask at all.
"""
