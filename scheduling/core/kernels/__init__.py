"""The pass' hot loops, compiled by Numba and cached on disk; private to `scheduling.core`. See `walk.py`."""
