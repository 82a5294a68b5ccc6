"""The inner loops of a pass, compiled by Numba. Only `scheduling.core` uses them. `walk.py` is the main one."""
