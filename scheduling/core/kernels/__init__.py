"""The hot loops of a pass, compiled by Numba and cached on disk. Private to `scheduling.core`. See `walk.py`."""
